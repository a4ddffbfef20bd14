//! Weights by name: every tensor is checked against the shape that the metadata asks for and
//! handed to the backend, and none may be left over.

use std::borrow::Cow;
use std::collections::HashSet;

use fornax_backend::Backend;
use fornax_gguf::{DType, Gguf, TensorView};

use crate::{Architecture, LoadError};

/// How weights are kept on the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WeightStorage {
    /// In the file's own block formats.
    #[default]
    Native,
    /// Decoded to `f32` while loading: the ladder's rung below `Native`.
    F32,
}

/// Brings one file's tensors to one backend.
pub(crate) struct Loader<'a, B: Backend> {
    file: &'a Gguf,
    backend: &'a mut B,
    architecture: Architecture,
    storage: WeightStorage,
    used: HashSet<String>,
}

impl<'a, B: Backend> Loader<'a, B> {
    pub fn new(
        file: &'a Gguf,
        backend: &'a mut B,
        architecture: Architecture,
        storage: WeightStorage,
    ) -> Self {
        Self {
            file,
            backend,
            architecture,
            storage,
            used: HashSet::new(),
        }
    }

    /// A vector `[width]`.
    pub fn vector(&mut self, name: &str, width: usize) -> Result<B::Weight, LoadError> {
        self.join(&[(name, &[width])])
    }

    /// A matrix `[out, in]`.
    pub fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<B::Weight, LoadError> {
        self.join(&[(name, &shape)])
    }

    /// A vector `[width]` as a matrix of one row.
    pub fn row(&mut self, name: &str, width: usize) -> Result<B::Weight, LoadError> {
        let view = self.tensor(name, &[width])?;
        let shape = [1, width];
        self.upload(&[TensorView {
            shape: &shape,
            ..view
        }])
    }

    /// Tensors joined along their output dimension into one weight.
    pub fn join(&mut self, parts: &[(&str, &[usize])]) -> Result<B::Weight, LoadError> {
        let views = parts.iter().map(|(name, shape)| self.tensor(name, shape));
        let views = views.collect::<Result<Vec<_>, _>>()?;
        self.upload(&views)
    }

    /// A matrix whose rows form heads of `dim`, each turned so that its last `trailing` rows lead.
    pub fn rotated(
        &mut self,
        name: &str,
        shape: [usize; 2],
        dim: usize,
        trailing: usize,
    ) -> Result<B::Weight, LoadError> {
        let view = self.tensor(name, &shape)?;
        let mut data = Vec::with_capacity(view.data.len());
        for row in 0..shape[0] {
            let source = row / dim * dim + (row % dim + dim - trailing) % dim;
            data.extend_from_slice(view.row(source));
        }
        self.upload(&[TensorView {
            data: &data,
            ..view
        }])
    }

    /// A tensor's values on the host.
    pub fn host(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, LoadError> {
        Ok(self.tensor(name, shape)?.decode())
    }

    fn upload(&mut self, views: &[TensorView<'_>]) -> Result<B::Weight, LoadError> {
        match self.storage {
            WeightStorage::Native => Ok(self.backend.upload(views)?),
            WeightStorage::F32 => {
                let decoded: Vec<Cow<'_, [u8]>> = views.iter().map(f32_bytes).collect();
                let views: Vec<TensorView<'_>> = views
                    .iter()
                    .zip(&decoded)
                    .map(|(view, data)| TensorView {
                        dtype: DType::F32,
                        data,
                        ..*view
                    })
                    .collect();
                Ok(self.backend.upload(&views)?)
            }
        }
    }

    /// Numbers that the host makes, on the device.
    pub fn computed(&mut self, values: &[f32], shape: &[usize]) -> Result<B::Weight, LoadError> {
        let data: Vec<u8> = values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let view = TensorView {
            name: "computed",
            dtype: DType::F32,
            shape,
            data: &data,
        };
        Ok(self.backend.upload(&[view])?)
    }

    /// A vector of the file on the host, where the file has it.
    pub fn optional_host(
        &mut self,
        name: &str,
        width: usize,
    ) -> Result<Option<Vec<f32>>, LoadError> {
        match self.file.tensor(name) {
            Some(_) => Ok(Some(self.tensor(name, &[width])?.decode())),
            None => Ok(None),
        }
    }

    /// Whether the file has this tensor.
    pub fn has(&self, name: &str) -> bool {
        self.file.tensor(name).is_some()
    }

    /// Refuses a file with tensors that nobody asked for.
    pub fn finish(self) -> Result<(), LoadError> {
        match self
            .file
            .tensors()
            .find(|tensor| !self.used.contains(tensor.name))
        {
            None => Ok(()),
            Some(tensor) => Err(LoadError::UnusedTensor {
                file: self.file.source().to_owned(),
                name: tensor.name.to_owned(),
                architecture: self.architecture.name().to_owned(),
            }),
        }
    }

    fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<TensorView<'a>, LoadError> {
        let file = self.file.source().to_owned();
        let Some(view) = self.file.tensor(name) else {
            let architecture = self.architecture.name().to_owned();
            let (name, shape) = (name.to_owned(), shape.to_vec());
            return Err(LoadError::MissingTensor {
                file,
                name,
                architecture,
                shape,
            });
        };
        if view.shape != shape {
            let (found, expected) = (view.shape.to_vec(), shape.to_vec());
            return Err(LoadError::TensorShape {
                file,
                name: name.to_owned(),
                found,
                expected,
            });
        }
        self.used.insert(name.to_owned());
        Ok(view)
    }
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
