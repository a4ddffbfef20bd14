//! Sizes in bytes, as people write them.

/// So many bytes in each unit, the larger ones first.
const UNITS: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("", 1),
];

/// Reads a size such as `512MiB`, `2GiB` or `1048576`.
///
/// # Errors
/// Another form, or a size that is 0 or cannot be counted.
pub fn bytes(text: &str) -> Result<u64, String> {
    let form = || format!("`{text}` is no size; write a number and KiB, MiB, GiB or TiB");
    let unit = UNITS.iter().find(|(unit, _)| text.ends_with(unit));
    let (unit, factor) = unit.ok_or_else(form)?;
    let number = text.strip_suffix(unit).unwrap_or(text).trim_end();
    let number: u64 = number.parse().map_err(|_| form())?;
    match number.checked_mul(*factor) {
        None => Err(format!("`{text}` is more than any machine has")),
        Some(0) => Err("a size of 0 holds nothing".to_owned()),
        Some(bytes) => Ok(bytes),
    }
}

/// A size for people, with one decimal.
pub fn told(bytes: u64) -> String {
    let unit = UNITS.iter().find(|(_, factor)| bytes >= *factor);
    match unit {
        Some((unit, factor)) if *factor > 1 => {
            format!("{:.1} {unit}", bytes as f64 / *factor as f64)
        }
        _ => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_told() {
        assert_eq!(bytes("512MiB"), Ok(512 << 20));
        assert_eq!(bytes("2 GiB"), Ok(2 << 30));
        assert_eq!(bytes("77"), Ok(77));
        assert_eq!(told(512 << 20), "512.0 MiB");
        assert_eq!(told((3 << 30) / 2), "1.5 GiB");
        assert_eq!(told(77), "77 bytes");
        for wrong in [
            "",
            "MiB",
            "-1MiB",
            "1MB",
            "1.5GiB",
            "0",
            "0KiB",
            "99999999999TiB",
        ] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }
}
