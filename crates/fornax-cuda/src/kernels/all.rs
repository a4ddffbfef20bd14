//! Every kernel there is, compiled without a device.
//!
//! Owns which shapes stand for all that are compiled as models need them.

use std::{panic::resume_unwind, thread};

use fornax_backend::BackendError;
use fornax_gguf::DType;

use super::{Module, SKINNY_ROWS, attend_stream::Stream, formats::Formats};
use crate::compiler::Compiler;

/// The generation that has kernels of its own.
const HOPPER: &str = "sm_90a";

/// A format of each kind that has kernels of its own: halves of numbers, whole bytes, parts of bytes, scales in two
/// steps with minimums, a table.
const KINDS: [DType; 5] = [
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_K,
    DType::IQ4_NL,
];

/// Compiles the kernels for an architecture such as `sm_90a`, those of products for some formats,
/// which needs no device, and says how many modules that were.
///
/// # Errors
/// The compiler is missing, or one of the kernels is not as it wants it, or would have tensor cores wait for
/// each product before the next.
pub fn compile_kernels(architecture: &str, formats: &[DType]) -> Result<usize, BackendError> {
    let mut modules = vec![
        Module::Ferry,
        Module::Rows,
        Module::Sample,
        Module::AttendAny,
    ];
    // What differs between generations does so for all sizes and types alike.
    let caches: &[_] = match architecture {
        HOPPER => &[(64, 1), (64, 2), (64, 3), (128, 1), (128, 2), (128, 3)],
        _ => &[(64, 1), (128, 2), (128, 3)],
    };
    for &(head, kv) in caches {
        modules.extend(
            [(1, 2), (4, 4)].map(|(group, together)| Module::AttendRows {
                head,
                group,
                kv,
                together,
                plain: group == 1,
            }),
        );
        // One head or two, which a cache in Q8_0 multiplies otherwise, and many.
        let groups = [head / 64, 8];
        modules.extend(groups.map(|group| {
            let plain = group == 8;
            Module::AttendStream(Stream {
                head,
                group,
                kv,
                plain,
            })
        }));
        modules.extend([1, 2].map(|groups| Module::AttendTiles {
            head,
            kv,
            groups,
            plain: groups == 1,
        }));
        modules.push(Module::Turn { head, kv });
    }
    modules.extend(formats.iter().map(|format| Module::Product(*format)));
    let blocks = || formats.iter().filter(|format| **format != DType::F32);
    modules.extend(blocks().map(|&format| Module::Gemv { format, one: true }));
    modules.extend(blocks().map(|format| Module::Largest(*format)));
    // What these unpack a format with is what plain loops do.
    let kinds = || formats.iter().filter(|format| KINDS.contains(format));
    modules.extend(kinds().map(|&format| Module::Gemv { format, one: false }));
    modules.extend(kinds().map(|format| Module::Gemm(*format)));
    let in_chains = [
        (&[DType::F16, DType::Q8_0][..], (64, 3, 1)),
        (&[DType::BF16, DType::Q4_0, DType::IQ4_NL], (128, 2, 2)),
        (&[DType::Q4_K, DType::Q5_K, DType::Q6_K], (128, 1, 3)),
        (&[DType::MXFP4], (64, 1, 1)),
    ];
    modules.extend(
        in_chains
            .iter()
            .filter_map(|&(of_chain, (head, group, kv))| {
                let chosen = of_chain.iter().filter(|format| formats.contains(format));
                let formats = Formats::of(chosen.copied());
                let module = Module::Chain {
                    formats,
                    head,
                    group,
                    kv,
                };
                (formats != Formats::default()).then_some(module)
            }),
    );
    // Written for that generation alone: on others nothing is left of them.
    if architecture == HOPPER {
        modules.push(Module::Gates);
        modules.extend(
            caches
                .iter()
                .flat_map(|&(head, kv)| [0, 1].map(|style| Module::Turned { head, kv, style })),
        );
        let rows = SKINNY_ROWS.map(|rows| (rows, 1, false));
        let split = [false, true].map(|tiled| (SKINNY_ROWS[0], 2, tiled));
        let rows = rows.into_iter().chain(split);
        modules.extend(rows.map(|(rows, parts, tiled)| Module::Skinny { rows, parts, tiled }));
        // The least, the most, and one whose last chunk is not whole.
        let rows = [SKINNY_ROWS[0], 144, SKINNY_ROWS[SKINNY_ROWS.len() - 1]];
        modules.extend(
            rows.into_iter()
                .flat_map(|rows| [true, false].map(|brains| Module::Vocabulary { rows, brains })),
        );
        // Of each format one row and the most, with heads of each kind, for neither knows of the other.
        let teams = [
            (DType::Q8_0, [128, 2, 1, 3, 1]),
            (DType::Q8_0, [128, 4, 3, 2, 3]),
            (DType::Q4_0, [64, 3, 1, 4, 1]),
            (DType::Q4_0, [128, 2, 1, 2, 3]),
            (DType::BF16, [128, 2, 2, 2, 1]),
            (DType::BF16, [128, 2, 2, 2, 2]),
        ];
        let teams = teams.iter().filter(|(format, _)| formats.contains(format));
        modules.extend(teams.map(
            |&(format, [head, group, kv, halves, rows])| Module::Layers {
                format,
                head,
                group,
                kv,
                halves,
                rows,
                plain: rows == 1,
            },
        ));
    }
    // By as many threads as there are cores: neighbours take about as long.
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let compile = |first: usize| {
        let mut compiler = Compiler::strict(architecture.to_owned());
        for module in modules.iter().skip(first).step_by(threads) {
            compiler.compile(&module.name(), &module.source()?, &module.defines())?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let begin = |first| scope.spawn(move || compile(first));
        let begun: Vec<_> = (0..threads).map(begin).collect();
        let mut results = begun.into_iter().map(|thread| thread.join());
        results.try_for_each(|result| result.unwrap_or_else(|panic| resume_unwind(panic)))
    })?;
    Ok(modules.len())
}
