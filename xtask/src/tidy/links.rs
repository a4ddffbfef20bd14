//! Links of Markdown files to files of the repository.

use super::{Violation, tree::Tree};

/// A link leads to a file or folder that is there.
pub fn targets(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for (file, text) in tree.texts().filter(|(file, _)| file.extension() == "md") {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (line, target) in links(text) {
            let there = resolve(folder, target).is_some_and(|path| tree.has(&path));
            if !there {
                found.push(Violation {
                    path: file.path.clone(),
                    line,
                    what: format!(
                        "links to {target}, which is not in the repository: correct or remove it"
                    ),
                });
            }
        }
    }
    found
}

/// Each link to a file, with its line; what stands in code, leads to the web or stays on the page
/// is left out.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    let mut fenced = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            links.extend(
                line_links(line)
                    .into_iter()
                    .map(|target| (index + 1, target)),
            );
        }
    }
    links
}

/// Targets of `[…](target)` and of `[…]: target` in one line.
fn line_links(line: &str) -> Vec<&str> {
    let outside_code = line.split('`').step_by(2);
    let mut targets: Vec<&str> = outside_code.flat_map(inline_targets).collect();
    // `[`code`](target)` is cut in two by its code.
    if line.contains("`](") {
        targets = inline_targets(line);
    }
    let definition = line
        .strip_prefix('[')
        .and_then(|rest| rest.split_once("]: "));
    targets.extend(definition.map(|(_, target)| target.trim()));
    targets.into_iter().filter_map(file_part).collect()
}

fn inline_targets(text: &str) -> Vec<&str> {
    let starts = text.match_indices("](").map(|(at, _)| &text[at + 2..]);
    starts
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target)
        .collect()
}

/// The file that a link's target names, without a title or a section; `None` where it names none.
fn file_part(target: &str) -> Option<&str> {
    let target = target.split_whitespace().next()?;
    let web = target.contains("://") || target.starts_with("mailto:");
    let file = target.split('#').next().filter(|file| !file.is_empty())?;
    (!web).then_some(file)
}

/// A target seen from `folder`, as a path in the repository; `None` where it leaves it.
fn resolve(folder: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn broken(text: &str) -> Vec<usize> {
        let tree = Tree::of(&[
            ("docs/guide.md", text),
            ("docs/other.md", ""),
            ("src/lib.rs", ""),
        ]);
        targets(&tree)
            .iter()
            .map(|violation| violation.line)
            .collect()
    }

    #[test]
    fn a_link_to_a_file_or_folder_that_is_there_is_fine() {
        let text = "[a](other.md) [b](../src/lib.rs#L3) [c](../src/) [d](../src \"title\")\n\
                    [e](https://example.org/x) [f](#section) [g](mailto:a@example.org)\n\
                    [h]: other.md\n[`code`](other.md)\n";
        assert_eq!(broken(text), [] as [usize; 0]);
    }

    #[test]
    fn a_link_to_nothing_is_told() {
        let text =
            "[a](other.md)\n[b](gone.md) [c](../../shared)\n[`d`](src/lib.rs)\n[e]: gone.md\n";
        assert_eq!(broken(text), [2, 2, 3, 4]);
    }

    #[test]
    fn code_holds_no_links() {
        assert_eq!(
            broken("`[a](gone)` and\n```\n[b](gone)\n```\n[c](gone)"),
            [5]
        );
    }
}
