//! What one rendering may cost: text, values and their depth, whatever the template says. Counts
//! steps, not time, so that a template that fails does so everywhere. Knows no templates.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use minijinja::value::{Value, ValueKind};
use minijinja::{Error, ErrorKind};

use super::objects;
use super::python::failed;

/// Steps of a rendering: a value that is looked at is one, and so are 128 bytes of its text. Enough
/// for 256 MiB of text; the longest real conversations take a tenth.
const STEPS: u64 = 1 << 21;
pub(super) const BYTES_A_STEP: usize = 128;
/// Bytes of one text.
pub(super) const LONGEST: usize = 32 << 20;
/// Lists in lists. JSON texts end at 128.
const DEEPEST: usize = 200;

/// The steps that a rendering has left; clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Budget(Arc<AtomicU64>);

impl Budget {
    /// All that one rendering may take.
    pub(crate) fn new() -> Budget {
        Budget(Arc::new(AtomicU64::new(STEPS)))
    }

    /// Takes `steps` away.
    ///
    /// # Errors
    /// There are not as many left.
    pub(crate) fn spend(&self, steps: usize) -> Result<(), Error> {
        let left = self.0.load(Relaxed);
        match left.checked_sub(steps as u64) {
            Some(left) => self.0.store(left, Relaxed),
            None => {
                let problem = "the template goes through more text than a conversation can have";
                return Err(Error::new(ErrorKind::OutOfFuel, problem));
            }
        }
        Ok(())
    }

    /// Takes what a text of so many bytes costs.
    ///
    /// # Errors
    /// It is too long by itself, or for what is left.
    pub(crate) fn spend_text(&self, bytes: usize) -> Result<(), Error> {
        if bytes > LONGEST {
            return Err(failed("the template makes a text of more than 32 MiB"));
        }
        self.spend(1 + bytes / BYTES_A_STEP)
    }

    /// Takes what `value` costs, with all that is in it.
    ///
    /// # Errors
    /// It is too long, too deep, or too much for what is left.
    pub(crate) fn weigh(&self, value: &Value) -> Result<(), Error> {
        self.weigh_each(value, DEEPEST, &|_| Ok(()))
    }

    /// [`Budget::weigh`], for what a namespace is to keep: no namespace, which could contain itself,
    /// and no macro, which could contain the namespace.
    pub(crate) fn weigh_kept(&self, value: &Value) -> Result<(), Error> {
        self.weigh_each(value, DEEPEST, &|value| {
            let object = value.as_object().map(|object| object.type_name());
            // The engine's own: macros and loops are of its machine, `vm`.
            let is_live = |name: &str| name.ends_with("::Namespace") || name.contains("::vm::");
            match object.is_some_and(is_live) || value.kind() == ValueKind::Plain {
                true => Err(failed("a namespace cannot keep a namespace or a macro")),
                false => Ok(()),
            }
        })
    }

    fn weigh_each(
        &self,
        value: &Value,
        depth: usize,
        check: &dyn Fn(&Value) -> Result<(), Error>,
    ) -> Result<(), Error> {
        check(value)?;
        match value.kind() {
            ValueKind::String => return self.spend_text(value.as_str().map_or(0, str::len)),
            ValueKind::Bytes => return self.spend_text(value.len().unwrap_or(0)),
            ValueKind::Seq | ValueKind::Iterable | ValueKind::Map | ValueKind::Plain => {}
            _ => return self.spend(1),
        }
        let depth = depth
            .checked_sub(1)
            .ok_or_else(|| failed("the template puts lists into lists without end"))?;
        self.spend(1)?;
        if value.kind() == ValueKind::Plain {
            let kept = objects::kept(value).unwrap_or_default();
            let mut kept = kept.iter();
            return kept.try_for_each(|kept| self.weigh_each(kept, depth, check));
        }
        for item in value.try_iter()?.checked() {
            let item = item?;
            self.weigh_each(&item, depth, check)?;
            if value.kind() == ValueKind::Map {
                self.weigh_each(&value.get_item(&item)?, depth, check)?;
            }
        }
        Ok(())
    }
}
