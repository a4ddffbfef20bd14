//! Measuring: what is run, how often, and what is said of it. Commands choose, this measures.

pub mod description;
pub mod driver;
pub mod progress;
pub mod random;
pub mod ranges;
pub mod report;
pub mod statistics;
pub mod work;
