//! Weights by name: every tensor is checked against the shape that the metadata asks for and
//! handed to the backend, and none may be left over.
//!
//! The blocks ask for their tensors once, in one place, and [`Checked`] answers as a backend would
//! without reading any: what is refused when a model is loaded is refused before, too, wherever a
//! file is only to be checked.

use std::borrow::Cow;
use std::collections::HashSet;

use fornax_backend::{Backend, BackendError};
use fornax_gguf::{DType, Gguf, Tensor, TensorView};

use crate::{Architecture, LoadError, Wanted};

/// How weights are kept on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightStorage {
    /// In the file's own block formats.
    #[default]
    Native,
    /// Decoded to `f32` while loading: the ladder's rung below `Native`.
    F32,
}

/// Where weights go.
pub(crate) trait Device {
    /// A weight that is there.
    type Weight;

    /// Takes parts joined along their output dimension.
    fn take(
        &mut self,
        parts: &[Tensor<'_>],
        storage: WeightStorage,
    ) -> Result<Self::Weight, BackendError>;

    /// Takes a tensor whose rows are made of those of another.
    fn take_made(
        &mut self,
        tensor: &Tensor<'_>,
        storage: WeightStorage,
        make: impl FnOnce(&TensorView<'_>) -> Vec<u8>,
    ) -> Result<Self::Weight, BackendError>;

    /// Takes numbers that the host makes of tensors.
    fn take_values(
        &mut self,
        shape: &[usize],
        make: impl FnOnce() -> Vec<f32>,
    ) -> Result<Self::Weight, BackendError>;
}

impl<B: Backend> Device for B {
    type Weight = B::Weight;

    fn take(
        &mut self,
        parts: &[Tensor<'_>],
        storage: WeightStorage,
    ) -> Result<B::Weight, BackendError> {
        let data: Vec<Cow<'_, [u8]>> = parts.iter().map(Tensor::data).collect();
        let views = parts.iter().zip(&data);
        let views: Vec<TensorView<'_>> = views.map(|(part, data)| part.with(data)).collect();
        upload(self, &views, storage)
    }

    fn take_made(
        &mut self,
        tensor: &Tensor<'_>,
        storage: WeightStorage,
        make: impl FnOnce(&TensorView<'_>) -> Vec<u8>,
    ) -> Result<B::Weight, BackendError> {
        let made = make(&tensor.with(&tensor.data()));
        upload(self, &[tensor.with(&made)], storage)
    }

    fn take_values(
        &mut self,
        shape: &[usize],
        make: impl FnOnce() -> Vec<f32>,
    ) -> Result<B::Weight, BackendError> {
        let data: Vec<u8> = make()
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let view = TensorView {
            name: "computed",
            dtype: DType::F32,
            shape,
            data: &data,
        };
        self.upload(&[view])
    }
}

fn upload<B: Backend>(
    backend: &mut B,
    views: &[TensorView<'_>],
    storage: WeightStorage,
) -> Result<B::Weight, BackendError> {
    match storage {
        WeightStorage::Native => backend.upload(views),
        WeightStorage::F32 => {
            let decoded: Vec<Cow<'_, [u8]>> = views.iter().map(f32_bytes).collect();
            let views = views.iter().zip(&decoded).map(|(view, data)| TensorView {
                dtype: DType::F32,
                data,
                ..*view
            });
            backend.upload(&views.collect::<Vec<_>>())
        }
    }
}

/// A matrix as a backend gets it: parts of a file that are joined along their output dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The format of all of its parts, where they have one.
    pub dtype: Option<DType>,
    /// Rows of all parts.
    pub rows: usize,
    /// Numbers of a row.
    pub cols: usize,
}

/// Nothing behind the loader: a model is checked, and not a byte of its tensors read.
#[derive(Default)]
pub(crate) struct Checked {
    /// The matrices that it was given.
    pub matrices: Vec<Joined>,
}

impl Checked {
    fn see(&mut self, parts: &[Tensor<'_>]) {
        let first = &parts[0];
        if first.shape.len() == 2 {
            let one = parts.iter().all(|part| part.dtype == first.dtype);
            self.matrices.push(Joined {
                dtype: one.then_some(first.dtype),
                rows: parts.iter().map(Tensor::rows).sum(),
                cols: first.cols(),
            });
        }
    }
}

impl Device for Checked {
    type Weight = ();

    fn take(&mut self, parts: &[Tensor<'_>], _: WeightStorage) -> Result<(), BackendError> {
        self.see(parts);
        Ok(())
    }

    fn take_made(
        &mut self,
        tensor: &Tensor<'_>,
        _: WeightStorage,
        _: impl FnOnce(&TensorView<'_>) -> Vec<u8>,
    ) -> Result<(), BackendError> {
        self.see(std::slice::from_ref(tensor));
        Ok(())
    }

    fn take_values(
        &mut self,
        _: &[usize],
        _: impl FnOnce() -> Vec<f32>,
    ) -> Result<(), BackendError> {
        Ok(())
    }
}

/// A length that a tensor must have, and the keys that it is made of, without the architecture's
/// name: `attention.head_count × attention.key_length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dim {
    pub size: usize,
    pub of: &'static str,
}

impl Dim {
    /// A length with where it comes from.
    pub const fn new(size: usize, of: &'static str) -> Dim {
        Dim { size, of }
    }
}

/// Brings one file's tensors to one device.
pub(crate) struct Loader<'a, D: Device> {
    file: &'a Gguf,
    device: &'a mut D,
    architecture: Architecture,
    storage: WeightStorage,
    used: HashSet<&'a str>,
}

impl<'a, D: Device> Loader<'a, D> {
    pub fn new(
        file: &'a Gguf,
        device: &'a mut D,
        architecture: Architecture,
        storage: WeightStorage,
    ) -> Self {
        Self {
            file,
            device,
            architecture,
            storage,
            used: HashSet::new(),
        }
    }

    /// A vector `[width]`.
    pub fn vector(&mut self, name: &str, width: Dim) -> Result<D::Weight, LoadError> {
        self.join(&[(name, &[width])])
    }

    /// A matrix `[out, in]`.
    pub fn matrix(&mut self, name: &str, shape: [Dim; 2]) -> Result<D::Weight, LoadError> {
        self.join(&[(name, &shape)])
    }

    /// A vector `[width]` as a matrix of one row.
    pub fn row(&mut self, name: &str, width: Dim) -> Result<D::Weight, LoadError> {
        let tensor = self.tensor(name, &[width])?;
        let row = [1, width.size];
        Ok(self.device.take(&[tensor.shaped(&row)], self.storage)?)
    }

    /// Tensors joined along their output dimension into one weight.
    pub fn join(&mut self, parts: &[(&str, &[Dim])]) -> Result<D::Weight, LoadError> {
        let tensors = parts.iter().map(|(name, shape)| self.tensor(name, shape));
        let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
        Ok(self.device.take(&tensors, self.storage)?)
    }

    /// A matrix whose rows form heads of `dim`, each turned so that its last `trailing` rows lead.
    pub fn rotated(
        &mut self,
        name: &str,
        shape: [Dim; 2],
        dim: usize,
        trailing: usize,
    ) -> Result<D::Weight, LoadError> {
        let tensor = self.tensor(name, &shape)?;
        let turn = |view: &TensorView<'_>| {
            let mut data = Vec::with_capacity(view.data.len());
            for row in 0..view.rows() {
                let source = row / dim * dim + (row % dim + dim - trailing) % dim;
                data.extend_from_slice(view.row(source));
            }
            data
        };
        Ok(self.device.take_made(&tensor, self.storage, turn)?)
    }

    /// Numbers that the host makes, on the device.
    pub fn computed(
        &mut self,
        shape: &[usize],
        make: impl FnOnce() -> Vec<f32>,
    ) -> Result<D::Weight, LoadError> {
        Ok(self.device.take_values(shape, make)?)
    }

    /// A tensor of the file that the host reads.
    pub fn host(&mut self, name: &str, shape: &[Dim]) -> Result<Tensor<'a>, LoadError> {
        self.tensor(name, shape)
    }

    /// A vector of the file on the host, where the file has it.
    pub fn optional_host(&mut self, name: &str, width: Dim) -> Result<Option<Vec<f32>>, LoadError> {
        match self.has(name) {
            true => Ok(Some(self.tensor(name, &[width])?.decode())),
            false => Ok(None),
        }
    }

    /// Whether the file has this tensor.
    pub fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// Refuses a file with tensors that nobody asked for.
    pub fn finish(self) -> Result<(), LoadError> {
        let unused = |tensor: &Tensor<'_>| !self.used.contains(tensor.name);
        match self.file.tensors().find(unused) {
            None => Ok(()),
            Some(tensor) => Err(LoadError::UnusedTensor {
                file: self.file.file_of(tensor.name),
                name: self.file.called(tensor.name).into_owned(),
                architecture: self.architecture.name().to_owned(),
            }),
        }
    }

    fn tensor(&mut self, name: &str, shape: &[Dim]) -> Result<Tensor<'a>, LoadError> {
        let file = self.file.file_of(name);
        let called = || self.file.called(name).into_owned();
        let Some(tensor) = self.file.tensor(name) else {
            return Err(LoadError::MissingTensor {
                file,
                name: called(),
                architecture: self.architecture.name().to_owned(),
                wanted: wanted(self.file, shape),
            });
        };
        let fits = |(found, wanted): (&usize, &Dim)| *found == wanted.size;
        let found = tensor.shape;
        if found.len() != shape.len() || !found.iter().zip(shape).all(fits) {
            return Err(LoadError::TensorShape {
                file,
                name: called(),
                found: found.to_vec(),
                wanted: wanted(self.file, shape),
            });
        }
        self.used.insert(tensor.name);
        Ok(tensor)
    }
}

/// A shape, and who asks for it: `config.json by [vocab_size, hidden_size]`.
pub(crate) fn wanted(file: &Gguf, shape: &[Dim]) -> Box<Wanted> {
    let setting = |word: &'static str| match word {
        "×" | "+" | "−" | "/" | "(" | ")" | "2" => word.to_owned(),
        key => file.setting(key).to_owned(),
    };
    let formula = |dim: &Dim| {
        let words = dim.of.split(' ').map(setting);
        words.collect::<Vec<_>>().join(" ")
    };
    let formulas: Vec<String> = shape.iter().map(formula).collect();
    Box::new(Wanted {
        shape: shape.iter().map(|dim| dim.size).collect(),
        by: format!("{} by [{}]", file.settings(), formulas.join(", ")),
    })
}

fn f32_bytes<'v>(view: &TensorView<'v>) -> Cow<'v, [u8]> {
    match view.dtype {
        DType::F32 => Cow::Borrowed(view.data),
        _ => Cow::Owned(
            view.decode()
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
        ),
    }
}
