//! The library from outside, as tests compute with it.

use fornax_backend::{Backend, Element};
use fornax_cpu::{Buffer, Cpu, CpuOptions, Weight};
use fornax_gguf::TensorView;

use crate::Isa;

pub(super) fn cpu(isa: Isa, threads: usize) -> Cpu {
    cpu_with(CpuOptions {
        threads: Some(threads),
        isa: Some(of_library(isa)),
        ..CpuOptions::default()
    })
}

pub(super) fn cpu_with(options: CpuOptions) -> Cpu {
    Cpu::new(options).expect("threads")
}

/// As `fornax_cpu` names it.
pub(super) fn of_library(isa: Isa) -> fornax_cpu::Isa {
    isa.to_string().parse().expect("a name of its own")
}

/// A buffer of these numbers.
pub(super) fn buffer(cpu: &mut Cpu, values: &[f32]) -> Buffer {
    let mut buffer = cpu.alloc(Element::F32, values.len()).expect("memory");
    cpu.write_f32(&mut buffer, values);
    buffer
}

/// A buffer of so many numbers, none of which is written yet.
pub(super) fn unwritten(cpu: &mut Cpu, len: usize) -> Buffer {
    buffer(cpu, &vec![f32::NAN; len])
}

pub(super) fn read(cpu: &mut Cpu, buffer: &Buffer, len: usize) -> Vec<f32> {
    let mut values = vec![0.0; len];
    cpu.read_f32(buffer, &mut values).expect("a result");
    values
}

/// A matrix on a backend.
pub(super) struct Matrix {
    pub cpu: Cpu,
    pub weight: Weight,
    pub rows: usize,
    pub cols: usize,
}

impl Matrix {
    /// Of parts with as many columns each.
    pub fn new(mut cpu: Cpu, parts: &[TensorView<'_>]) -> Self {
        let rows = parts.iter().map(|part| part.shape[0]).sum();
        Self {
            weight: cpu.upload(parts).expect("a weight"),
            rows,
            cols: parts[0].shape[1],
            cpu,
        }
    }

    /// The product with `n` columns of `x`. `[n, rows]`
    pub fn times(&mut self, x: &[f32], n: usize) -> Vec<f32> {
        let x = buffer(&mut self.cpu, &x[..n * self.cols]);
        let mut out = unwritten(&mut self.cpu, n * self.rows);
        self.cpu.linear(&mut out, &self.weight, None, &x, n);
        read(&mut self.cpu, &out, n * self.rows)
    }
}
