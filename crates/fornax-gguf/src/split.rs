//! Models split over several GGUF files: `NAME-00001-of-00003.gguf` and so on.
//!
//! Owns the names of parts and the keys that count them. The first part has the metadata; each has
//! some of the tensors. Must not know how a part is read.

use std::path::{Path, PathBuf};

use crate::{Error, Gguf};

/// How many parts there are.
const COUNT: &str = "split.count";
/// Which part this is, from 0.
const NUMBER: &str = "split.no";
/// How many tensors all parts have together.
const TENSORS: &str = "split.tensors.count";
/// The most parts that the names can count.
const MOST: u32 = 99_999;

/// How many parts the model has that `file` belongs to; `None` where it is whole.
///
/// # Errors
/// Where the file is a part but not the first, or its count cannot be.
pub(crate) fn parts(file: &Gguf) -> Result<Option<u32>, Error> {
    let count = file.metadata().optional_u32(COUNT)?.unwrap_or(1);
    if count <= 1 {
        return Ok(None);
    }
    if count > MOST {
        return Err(refuse(
            file,
            format!("it says that it is split into {count} parts"),
            "download it again",
        ));
    }
    match number(file)? {
        0 => Ok(Some(count)),
        number => Err(refuse(
            file,
            format!("it is part {} of {count}", u64::from(number) + 1),
            "name the first part; the others are found beside it",
        )),
    }
}

/// A file that must be whole.
///
/// # Errors
/// Where it is a part of several.
pub(crate) fn whole(file: Gguf) -> Result<Gguf, Error> {
    match parts(&file)? {
        None => Ok(file),
        Some(count) => Err(refuse(
            &file,
            format!("it is the first of {count} parts"),
            "give it with all its parts, or merge them",
        )),
    }
}

/// Makes one model of all parts, in their order.
///
/// # Errors
/// Where a part is missing, out of order or of another model.
pub(crate) fn join(parts: Vec<Gguf>) -> Result<Gguf, Error> {
    let count = parts.len();
    let mut parts = parts.into_iter();
    let Some(mut model) = parts.next() else {
        return Err(Error::Unwritable("a model of no parts".to_owned()));
    };
    let expected = self::parts(&model)?.unwrap_or(1);
    if expected as usize != count {
        return Err(refuse(
            &model,
            format!("it is split into {expected} parts, and {count} are here"),
            "give all of them",
        ));
    }
    for (position, part) in parts.enumerate() {
        let (number, of) = (number(&part)?, part.metadata().u32(COUNT)?);
        if (number as usize, of) != (position + 1, expected) {
            return Err(refuse(
                &part,
                format!(
                    "it says that it is part {} of {of} where part {} of {expected} belongs",
                    u64::from(number) + 1,
                    position + 2
                ),
                "download the parts again, and keep their names",
            ));
        }
        let source = part.source().to_owned();
        model.absorb(part).map_err(|tensor| Error::NotReadable {
            file: source,
            problem: format!("tensor {tensor:?} is in an earlier part already"),
            advice: "download the parts again".to_owned(),
        })?;
    }
    match model.metadata().optional_u64(TENSORS)? {
        Some(total) if total != model.tensors().len() as u64 => Err(refuse(
            &model,
            format!(
                "it says that its parts have {total} tensors, but they have {}",
                model.tensors().len()
            ),
            "download the parts again",
        )),
        _ => Ok(model),
    }
}

/// Which part a file is, from 0.
fn number(file: &Gguf) -> Result<u32, Error> {
    file.metadata().u32(NUMBER)
}

fn refuse(file: &Gguf, problem: String, advice: &str) -> Error {
    Error::NotReadable {
        file: file.source().to_owned(),
        problem,
        advice: advice.to_owned(),
    }
}

/// The names of a model's parts.
pub(crate) struct PartName {
    folder: PathBuf,
    stem: String,
    count: u32,
}

impl PartName {
    /// From the name of the first part.
    ///
    /// # Errors
    /// Where the name is not that of the first of `count` parts.
    pub fn first(file: &Gguf, path: &Path, count: u32) -> Result<Self, Error> {
        let name = path.file_name().and_then(|name| name.to_str());
        let stem = name.and_then(|name| name.strip_suffix(&format!("-00001-of-{count:05}.gguf")));
        let Some(stem) = stem else {
            return Err(refuse(
                file,
                format!("it is the first of {count} parts, but its name does not say so"),
                &format!("name it …-00001-of-{count:05}.gguf, and the others likewise"),
            ));
        };
        Ok(Self {
            folder: path.parent().unwrap_or(Path::new("")).to_owned(),
            stem: stem.to_owned(),
            count,
        })
    }

    /// All files are there.
    ///
    /// # Errors
    /// With the names of those that are not, or of the first of them.
    pub fn require(&self) -> Result<(), Error> {
        const NAMED: usize = 4;
        let missing = (2..=self.count).filter(|&number| !self.path_of(number).exists());
        let missing = missing.take(NAMED).map(|number| self.name_of(number));
        let missing: Vec<String> = missing.collect();
        if missing.is_empty() {
            return Ok(());
        }
        let folder = match self.folder.as_os_str().is_empty() {
            true => Path::new("."),
            false => &self.folder,
        };
        Err(Error::NotReadable {
            file: self.path_of(1).display().to_string(),
            problem: format!(
                "of its {} parts these are missing in {}: {}{}",
                self.count,
                folder.display(),
                missing.join(", "),
                if missing.len() == NAMED { " …" } else { "" }
            ),
            advice: "download them into that folder, and keep their names".to_owned(),
        })
    }

    /// The file of part `number`, from 1.
    pub fn path_of(&self, number: u32) -> PathBuf {
        self.folder.join(self.name_of(number))
    }

    fn name_of(&self, number: u32) -> String {
        let Self { stem, count, .. } = self;
        format!("{stem}-{number:05}-of-{count:05}.gguf")
    }
}
