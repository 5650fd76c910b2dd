//! The durable buffer: one commit log, and a spill per lane.
