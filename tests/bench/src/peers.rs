//! One file per queue.

#[cfg(feature = "apalis")]
pub mod apalis;
#[cfg(feature = "awa")]
pub mod awa;
pub mod bare;
#[cfg(feature = "graphile")]
pub mod graphile;
pub mod ours;
#[cfg(feature = "river")]
pub mod river;
