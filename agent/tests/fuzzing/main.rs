//! Fuzz targets with their corpora, and random packets through the real stack.

mod fuzz;
mod wirefuzz;
