//! Measuring: what is run, how often, and what is said of it. Commands choose, this measures.

pub mod batch;
pub mod description;
pub mod driver;
pub mod ladder;
pub mod profile;
pub mod progress;
pub mod random;
pub mod ranges;
pub mod report;
pub mod serve;
pub mod statistics;
pub mod work;
