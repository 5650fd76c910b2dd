//! Faults put in on purpose. The simulation has to find each of them; production code has no way to choose one.

/// One planted fault.
#[allow(dead_code)] // Chosen only by tests and the simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Planted {
    /// A group is answered without its flush.
    LogNotSynced,
    /// A group takes effect and is answered before its flush.
    AnswerBeforeSync,
    /// A failed flush of the log is tried again, and success believed.
    FailedSyncRetried,
    /// The sums of payloads are not looked at.
    PayloadUnchecked,
    /// Every run has the same owner epoch.
    CutIgnoresEpoch,
    /// A spill file is not flushed.
    SpillNotSynced,
    /// A spill file's name is not flushed.
    SpillDirNotSynced,
    /// A checkpoint is not flushed.
    CheckpointNotSynced,
    /// The log is cut before the checkpoint is durable.
    LogCutBeforeCheckpoint,
    /// Files are unlinked before the checkpoint is durable.
    UnlinkBeforeCheckpoint,
    /// A checkpoint overwrites the last one.
    CheckpointSameSlot,
    /// The slot that is not written does not say what the other has reached. (Was a bug.)
    CheckpointNotMarked,
    /// A checkpoint leaves out what is settled.
    CheckpointForgetsSettled,
    /// A checkpoint leaves out the send frontiers.
    CheckpointForgetsFrontier,
    /// A checkpoint leaves out the accepted keys.
    CheckpointForgetsKeys,
    /// A checkpoint leaves out the notes.
    CheckpointForgetsNotes,
    /// A checkpoint leaves out the positions.
    CheckpointForgetsPositions,
    /// A frontier is answered when it is queued.
    FrontierLate,
    /// A settled write's charge is not given back.
    SettleNotCharged,
    /// Copying forward loses some writes.
    CompactionDropsLive,
    /// Dependents are left out of a spill file's books.
    ChildrenForgottenOnSpill,
    /// The clean mark is written when a run begins.
    CleanMarkEarly,
    /// A run begins to number after what is settled without a gap.
    SeqReused,
    /// A gap in the log is passed over in silence.
    LossSilent,
    /// A clean exit forgets which writes may have been applied.
    MaybeForgottenOnClean,
    /// What the last run's flush may not have reached is not written again. (Was a bug.)
    TailNotRewritten,
    /// The checkpoint that was read is not written again. (Was a bug.)
    CheckpointNotRewritten,
    /// A name waiting to be removed is removed although it was given again. (Was a bug.)
    GarbageKept,
    /// A purge takes effect again on replay. (Was a bug.)
    PurgeReplayed,
    /// The beginning of a run takes effect again on replay. (Was a bug.)
    RunReplayed,
    /// One flipped bit in one copy of a version makes a file one of a newer version. (Was a bug.)
    OneCopyRefuses,
    /// The log is filled to its last byte, so that no run can begin in it. (Was a bug.)
    LogFilledWhole,
    /// A log whose files were removed passes for a new one. (Was a bug.)
    RemovedLogIsNew,
    /// The replay point passes writes that are pending in the log.
    CutTooFar,
    /// A file of accepted keys is not flushed.
    KeysNotSynced,
    /// Sparse spill files are not copied forward.
    CompactionLeftOut,
    /// Dependents are not released with their parent's settlement.
    ReleaseForgotten,
}

#[cfg(any(test, feature = "simulation"))]
impl Planted {
    /// Every planted fault that a run of the simulation finds. [`CompactionLeftOut`](Self::CompactionLeftOut) takes
    /// space and loses nothing, so a test of its own finds it.
    pub const ALL: &'static [Planted] = &[
        Planted::LogNotSynced,
        Planted::AnswerBeforeSync,
        Planted::FailedSyncRetried,
        Planted::PayloadUnchecked,
        Planted::CutIgnoresEpoch,
        Planted::SpillNotSynced,
        Planted::SpillDirNotSynced,
        Planted::CheckpointNotSynced,
        Planted::LogCutBeforeCheckpoint,
        Planted::UnlinkBeforeCheckpoint,
        Planted::CheckpointSameSlot,
        Planted::CheckpointNotMarked,
        Planted::CheckpointForgetsSettled,
        Planted::CheckpointForgetsFrontier,
        Planted::CheckpointForgetsKeys,
        Planted::CheckpointForgetsNotes,
        Planted::CheckpointForgetsPositions,
        Planted::FrontierLate,
        Planted::SettleNotCharged,
        Planted::CompactionDropsLive,
        Planted::ChildrenForgottenOnSpill,
        Planted::CleanMarkEarly,
        Planted::SeqReused,
        Planted::LossSilent,
        Planted::MaybeForgottenOnClean,
        Planted::TailNotRewritten,
        Planted::CheckpointNotRewritten,
        Planted::GarbageKept,
        Planted::PurgeReplayed,
        Planted::RunReplayed,
        Planted::OneCopyRefuses,
        Planted::LogFilledWhole,
        Planted::RemovedLogIsNew,
        Planted::CutTooFar,
        Planted::KeysNotSynced,
        Planted::ReleaseForgotten,
    ];
}
