//! The files that belong to the repository, in memory. Knows git, and no rule.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, bail};

/// One file.
pub struct File {
    /// Path in the repository, with `/`.
    pub path: String,
    /// What it says; `None` where it is not UTF-8.
    pub text: Option<String>,
}

impl File {
    /// What follows the last `.` of the name.
    pub fn extension(&self) -> &str {
        let name = self.path.rsplit('/').next().unwrap_or_default();
        name.rsplit_once('.').map_or("", |(_, extension)| extension)
    }
}

/// All files, in the order of their paths.
pub struct Tree {
    files: Vec<File>,
}

impl Tree {
    /// Reads what git tracks and what it would track: neither ignored nor deleted.
    ///
    /// # Errors
    /// `root` is no git work tree, or a file cannot be read.
    pub fn read(root: &Path) -> Result<Tree> {
        let listing = Command::new("git")
            .args([
                "ls-files",
                "-z",
                "--cached",
                "--others",
                "--exclude-standard",
            ])
            .current_dir(root)
            .output()
            .context("cannot run git: install it")?;
        if !listing.status.success() {
            let told = String::from_utf8_lossy(&listing.stderr);
            bail!("git cannot list {}: {}", root.display(), told.trim());
        }
        let listing = String::from_utf8(listing.stdout).context("a file name is not UTF-8")?;
        let mut paths: Vec<&str> = listing.split_terminator('\0').collect();
        paths.sort_unstable();
        paths.dedup();
        let mut files = Vec::with_capacity(paths.len());
        for path in paths {
            let on_disk = root.join(path);
            if on_disk.is_file() {
                let bytes = fs::read(&on_disk).with_context(|| format!("cannot read {path}"))?;
                let text = String::from_utf8(bytes).ok();
                files.push(File {
                    path: path.to_owned(),
                    text,
                });
            }
        }
        Ok(Tree { files })
    }

    /// A tree for a test.
    #[cfg(test)]
    pub fn of(files: &[(&str, &str)]) -> Tree {
        let file = |(path, text): &(&str, &str)| File {
            path: (*path).to_owned(),
            text: Some((*text).to_owned()),
        };
        Tree {
            files: files.iter().map(file).collect(),
        }
    }

    /// Number of files.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    /// Every file.
    pub fn files(&self) -> impl Iterator<Item = &File> {
        self.files.iter()
    }

    /// Every file that is text, with its text.
    pub fn texts(&self) -> impl Iterator<Item = (&File, &str)> {
        self.files()
            .filter_map(|file| Some((file, file.text.as_deref()?)))
    }

    /// The file at a path.
    #[cfg(test)]
    pub fn file(&self, path: &str) -> Option<&File> {
        self.files().find(|file| file.path == path)
    }

    /// Whether there is a file at the path, or a folder with a file in it.
    pub fn has(&self, path: &str) -> bool {
        let inside = format!("{path}/");
        self.files()
            .any(|file| file.path == path || file.path.starts_with(&inside))
    }
}
