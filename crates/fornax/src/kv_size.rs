//! How large the KV cache is: as many pages as were asked for, as are needed, or as fit.
//!
//! Owns the choice and what the system says of its memory. Knows no page's layout.

use std::fs;

use fornax_model::Memory;

use crate::Error;
use crate::load::PAGE_SIZE;

/// The KV cache in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KvSize {
    pub(crate) pages: usize,
    /// Bytes of all of them, over all layers.
    pub(crate) bytes: u64,
}

/// Where the size comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Room {
    /// So many bytes were asked for. If they are taken at once the system has to have them: what it says it
    /// has, if it tells.
    Asked(u64, Option<u64>),
    /// So many bytes the device has left beside all else: the cache takes them.
    OfDevice(u64),
    /// So many bytes the system has, if it tells, for the weights and whatever else runs there.
    OfSystem(Option<u64>),
}

impl KvSize {
    /// Pages for sequences of this context.
    ///
    /// # Errors
    /// Bytes that hold no page, or no room for a single context.
    pub(crate) fn choose(
        memory: &Memory,
        room: Room,
        context: usize,
        sequences: usize,
    ) -> Result<Self, Error> {
        let page = memory.kv_per_token.saturating_mul(PAGE_SIZE as u64);
        let of_pages = |pages: usize| Self {
            pages,
            bytes: (pages as u64).saturating_mul(page),
        };
        // Lossless: a page is at least a byte, and so many fit in memory.
        let fit = |bytes: u64| (bytes / page.max(1)) as usize;
        let one = context.div_ceil(PAGE_SIZE);
        let wanted = one.saturating_mul(sequences);
        let weights = memory.weights + memory.sketch;
        let (left, pages) = match room {
            Room::Asked(asked, available) => {
                let left = available.map(|bytes| bytes.saturating_sub(weights));
                if let Some(left) = left.filter(|left| asked > *left) {
                    return Err(Error::Options(format!(
                        "a KV cache of {asked} bytes is taken at once, and the weights leave {left} bytes of memory; give less"
                    )));
                }
                return match fit(asked) {
                    0 => Err(Error::Options(format!(
                        "a KV cache of {asked} bytes holds no page: one of {PAGE_SIZE} tokens takes {page} bytes; give more"
                    ))),
                    pages => Ok(of_pages(pages)),
                };
            }
            Room::OfDevice(left) => (left, fit(left)),
            Room::OfSystem(None) => return Ok(of_pages(wanted)),
            Room::OfSystem(Some(available)) => {
                let left = available.saturating_sub(weights);
                (left, fit(left / 4 * 3).min(wanted))
            }
        };
        match pages < one {
            true => Err(Error::Options(format!(
                "the weights leave {left} bytes of memory, and the K and V of a context of {context} tokens take {}; shorten the context, or choose a smaller KV type or the size of the KV cache yourself",
                of_pages(one).bytes
            ))),
            false => Ok(of_pages(pages)),
        }
    }
}

/// Bytes that a new program could use: what Linux says is available, or what the container still
/// has where that is less. `None` on systems that do not tell.
pub(crate) fn available_memory() -> Option<u64> {
    let system = of_system(&fs::read_to_string("/proc/meminfo").ok()?)?;
    let group = |file| fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok();
    let container = group("memory.max").zip(group("memory.current"));
    let container = container.and_then(|(most, current)| of_container(&most, &current));
    Some(container.map_or(system, |container| container.min(system)))
}

/// From the text of `/proc/meminfo`, which counts in KiB: proc(5).
fn of_system(meminfo: &str) -> Option<u64> {
    let mut lines = meminfo.lines();
    let available = lines.find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = available.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

/// From a control group's limit and use; `max` is no limit.
fn of_container(most: &str, current: &str) -> Option<u64> {
    let (most, current): (u64, u64) = (most.trim().parse().ok()?, current.trim().parse().ok()?);
    Some(most.saturating_sub(current))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page takes 6400 bytes.
    const MEMORY: Memory = Memory {
        weights: 990_000,
        sketch: 10_000,
        kv_per_token: 100,
    };

    fn pages(room: Room) -> Result<usize, String> {
        let size = KvSize::choose(&MEMORY, room, 1000, 4);
        size.map(|size| {
            assert_eq!(size.bytes, size.pages as u64 * 6400);
            size.pages
        })
        .map_err(|error| error.to_string())
    }

    #[test]
    fn a_size_that_is_asked_for_is_what_is_taken() {
        assert_eq!(pages(Room::Asked(64_000, None)), Ok(10));
        assert_eq!(pages(Room::Asked(70_399, None)), Ok(10));
        let refused = pages(Room::Asked(6399, None)).unwrap_err();
        assert!(
            refused.contains("6399") && refused.contains("6400"),
            "{refused}"
        );
    }

    #[test]
    fn what_is_taken_at_once_has_to_be_there() {
        assert_eq!(pages(Room::Asked(64_000, Some(1_064_000))), Ok(10));
        let refused = pages(Room::Asked(64_000, Some(1_063_999))).unwrap_err();
        assert!(
            refused.contains("64000 bytes") && refused.contains("63999 bytes"),
            "{refused}"
        );
    }

    #[test]
    fn unasked_every_sequence_can_fill_its_context_if_that_fits() {
        // A context takes 16 pages.
        assert_eq!(pages(Room::OfSystem(None)), Ok(64));
        assert_eq!(pages(Room::OfSystem(Some(1 << 40))), Ok(64));
        assert_eq!(
            pages(Room::OfSystem(Some(1_000_000 + 20 * 6400 / 3 * 4 + 64))),
            Ok(20)
        );
        let refused = pages(Room::OfSystem(Some(1_100_000))).unwrap_err();
        assert!(
            refused.contains("100000") && refused.contains("102400"),
            "{refused}"
        );
    }

    #[test]
    fn the_cache_takes_what_a_device_has_left() {
        assert_eq!(pages(Room::OfDevice(1_000_000 * 6400 + 1)), Ok(1_000_000));
        assert_eq!(pages(Room::OfDevice(16 * 6400)), Ok(16));
        let refused = pages(Room::OfDevice(16 * 6400 - 1)).unwrap_err();
        assert!(
            refused.contains("102399") && refused.contains("102400"),
            "{refused}"
        );
    }

    #[test]
    fn what_the_system_says_is_read_as_it_is_meant() {
        let told = "MemTotal:       24000 kB\nMemFree: 1 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(of_system(told), Some(2 << 20));
        assert_eq!(of_system("MemTotal: 1 kB\n"), None);
        assert_eq!(of_container("4096\n", "1024\n"), Some(3072));
        assert_eq!(of_container("max\n", "1024\n"), None);
    }
}
