//! Faults put in on purpose. The simulation has to find each of them; production code has no way to choose one.

/// One planted fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
#[allow(dead_code)] // Chosen only by tests and the simulation.
pub enum Planted {
    LogNotSynced,
    SegmentHeaderNotSynced,
    SaltReused,
    AnswerBeforeSync,
    FailedSyncRetried,
    PayloadUnchecked,
    CutIgnoresEpoch,
    TornTailNotCut,
    SpillNotSynced,
    SpillDirNotSynced,
    CheckpointNotSynced,
    LogCutBeforeCheckpoint,
    UnlinkBeforeCheckpoint,
    CheckpointSameSlot,
    CheckpointForgetsSettled,
    CheckpointForgetsFrontier,
    CheckpointForgetsKeys,
    CheckpointForgetsNotes,
    CheckpointForgetsPositions,
    FrontierLate,
    SettleNotCharged,
    SpillLengthIgnored,
    CompactionKeepsSettled,
    CompactionDropsLive,
    ChildrenReleasedTwice,
    ChildrenForgottenOnSpill,
    CleanMarkEarly,
    SeqReused,
    LossSilent,
    MaybeForgottenOnClean,
}

#[cfg(any(test, feature = "simulation"))]
impl Planted {
    /// Every planted fault.
    pub const ALL: &'static [Planted] = &[];
}
