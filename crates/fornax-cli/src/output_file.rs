//! A file that stands under its name whole or not at all.
//!
//! Owns the name that it has until then, and what may not be written over. Must not know what is
//! written.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::exit;
use std::sync::{Mutex, Once, PoisonError};

use anyhow::{Context, Result, bail};

/// What the shell expects of a program that was interrupted.
const INTERRUPTED: i32 = 130;

/// What is to be removed if the program is interrupted.
static UNFINISHED: Mutex<Option<PathBuf>> = Mutex::new(None);

/// A file in the making; removed when dropped, unless it was [kept](Self::keep). A process makes
/// one at a time.
pub struct OutputFile {
    target: PathBuf,
    temporary: PathBuf,
}

impl OutputFile {
    /// A file that is to stand at `target`, made of what is `read` from these files or folders.
    ///
    /// # Errors
    /// The target is one of those files or lies in one of those folders, or is no file: a folder, a
    /// device, a pipe.
    pub fn new(target: &Path, read: &[&Path]) -> Result<Self> {
        if let Ok(kind) = fs::metadata(target) {
            let shown = target.display();
            if kind.is_dir() {
                bail!("{shown} is a folder; name a file in it");
            }
            if !kind.is_file() {
                bail!(
                    "{shown} is a device or a pipe, and a file would take its place; name a file"
                );
            }
        }
        for input in read {
            refuse_overwriting(input, target)?;
        }
        let temporary = temporary(target)?;
        remove_when_interrupted(&temporary)?;
        Ok(Self {
            target: target.to_owned(),
            temporary,
        })
    }

    /// The name that it has until it is whole.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Begins it.
    ///
    /// # Errors
    /// It cannot be written there.
    pub fn create(&self) -> Result<File> {
        File::create(&self.temporary).with_context(|| shown("cannot write", &self.temporary))
    }

    /// Gives it its name.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub fn keep(self) -> Result<()> {
        fs::rename(&self.temporary, &self.target)
            .with_context(|| shown("cannot write", &self.target))
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        *UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner) = None;
        // Half a file is of no use to anyone; that it cannot be removed matters less than why.
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Has Ctrl-C, a termination and a hangup remove the file before they end the program.
fn remove_when_interrupted(temporary: &Path) -> Result<()> {
    static HANDLER: Once = Once::new();
    let unfinished = || UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner);
    *unfinished() = Some(temporary.to_owned());
    let mut set = Ok(());
    HANDLER.call_once(|| {
        set = ctrlc::set_handler(move || {
            if let Some(path) = &*unfinished() {
                let _ = fs::remove_file(path);
            }
            exit(INTERRUPTED);
        });
    });
    set.context("signals cannot be taken over")
}

/// A model that is read is mapped: writing into it would destroy both.
fn refuse_overwriting(input: &Path, output: &Path) -> Result<()> {
    let Ok(target) = output.canonicalize() else {
        return Ok(());
    };
    let source = input
        .canonicalize()
        .with_context(|| shown("cannot open", input))?;
    let inside = source.is_dir()
        && target.starts_with(&source)
        && target.extension() != Some("gguf".as_ref());
    // Parts of a split file differ in their numbers only.
    let stem = |path: &Path| {
        let name = path.file_name()?.to_str()?;
        let (stem, parts) = name.rsplit_once("-of-")?;
        let (stem, _) = stem.rsplit_once('-')?;
        Some((path.parent()?.to_owned(), stem.to_owned(), parts.to_owned()))
    };
    let is_part = stem(&source).is_some() && stem(&source) == stem(&target);
    if source == target || inside || is_part {
        bail!(
            "{} belongs to what is read; choose another name",
            output.display()
        );
    }
    Ok(())
}

/// A name beside the output, so that renaming stays on one disk.
fn temporary(output: &Path) -> Result<PathBuf> {
    let name = output
        .file_name()
        .with_context(|| shown("is no file name:", output))?;
    let mut name = name.to_owned();
    name.push(format!(".{}.partial", std::process::id()));
    Ok(output.with_file_name(name))
}

fn shown(what: &str, path: &Path) -> String {
    format!("{what} {}", path.display())
}
