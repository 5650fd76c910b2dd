//! The HTTP side of a running host: health, metrics, console.
