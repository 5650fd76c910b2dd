//! What calls hand out: reservations, claims, and futures of what was queued.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::sync::oneshot;

use crate::api::{Fetched, LaneId, NewWrite};
use crate::error::BufferError;
use crate::keys::Busy;
use crate::shared::Shared;

/// Room that was set aside. Dropping it gives the room back.
#[derive(Debug)]
pub struct Reservation {
    pub(crate) charges: Vec<(LaneId, u64)>,
    pub(crate) dropped: Vec<usize>,
    pub(crate) shared: Arc<Shared>,
}

impl Reservation {
    /// Indexes of the writes that found no room in a lane with [`WhenFull::Drop`]. Leave them out of the acceptance.
    pub fn dropped(&self) -> &[usize] {
        &self.dropped
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.charges.is_empty() {
            return;
        }
        let mut state = self.shared.state.lock();
        for (lane, charge) in self.charges.drain(..) {
            let lane = state.lane_mut(lane.0);
            lane.reserved = lane.reserved.saturating_sub(charge);
        }
        state.room_appeared();
    }
}

/// An origin that nobody else can claim until this is dropped.
#[derive(Debug)]
pub struct Claim {
    pub(crate) held: Option<(u32, Busy)>,
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some((scope, busy)) = self.held.take() {
            self.shared.state.lock().scope_mut(scope).release(&busy);
        }
    }
}

pub(crate) type Receiver<T> = oneshot::Receiver<Result<T, BufferError>>;

#[derive(Debug)]
pub(crate) struct Waiting<T> {
    pub(crate) receiver: Result<Receiver<T>, Option<BufferError>>,
    /// Taken at the first poll: somebody waits now.
    pub(crate) urge: Option<Arc<Shared>>,
}

impl<T> Waiting<T> {
    /// Waits for what was queued, or for nothing when it could not be.
    pub(crate) fn of(receiver: Result<Receiver<T>, BufferError>) -> Self {
        Waiting {
            receiver: receiver.map_err(Some),
            urge: None,
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<T, BufferError>> {
        let receiver = match &mut self.receiver {
            Err(why) => return Poll::Ready(Err(why.take().unwrap_or(BufferError::Closed))),
            Ok(receiver) => receiver,
        };
        match Pin::new(receiver).poll(cx) {
            Poll::Ready(answer) => Poll::Ready(answer.unwrap_or(Err(BufferError::Closed))),
            Poll::Pending => {
                if let Some(shared) = self.urge.take() {
                    shared.urge();
                }
                Poll::Pending
            }
        }
    }

    /// The answer, if it is there.
    #[cfg(any(test, feature = "simulation"))]
    fn try_now(&mut self) -> Option<Result<T, BufferError>> {
        match &mut self.receiver {
            Err(why) => Some(Err(why.take().unwrap_or(BufferError::Closed))),
            Ok(receiver) => match receiver.try_recv() {
                Ok(answer) => Some(answer),
                Err(oneshot::error::TryRecvError::Empty) => None,
                Err(oneshot::error::TryRecvError::Closed) => Some(Err(BufferError::Closed)),
            },
        }
    }
}

macro_rules! waiting {
    ($(#[$doc:meta] $name:ident -> $t:ty;)*) => {$(
        #[$doc]
        #[derive(Debug)]
        #[allow(missing_docs)]
        pub struct $name(pub(crate) Waiting<$t>);

        impl Future for $name {
            type Output = Result<$t, BufferError>;
            fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                self.0.poll(cx)
            }
        }

        #[cfg(any(test, feature = "simulation"))]
        impl $name {
            /// The answer, if it is there: for drivers that step the core themselves.
            #[doc(hidden)]
            pub fn try_now(&mut self) -> Option<Result<$t, BufferError>> {
                self.0.try_now()
            }
        }
    )*};
}

#[cfg(any(test, feature = "simulation"))]
impl Fetching {
    /// Whether the committing side has to answer; takes nothing.
    pub(crate) fn try_now_is_pending(&mut self) -> bool {
        matches!(&mut self.0.receiver, Ok(receiver) if receiver.is_empty())
    }
}

waiting! {
    /// Resolves to the lanes and numbers of the accepted writes once their record is durable.
    Accepting -> Vec<(LaneId, u64)>;
    /// Resolves to pending writes.
    Fetching -> Fetched;
    /// Resolves to the dependents of one write.
    Holding -> Vec<NewWrite>;
    /// Resolves once the operation is durable. May be dropped: the operation goes on.
    Ticket -> ();
    /// Resolves to the number of writes taken away, once that is durable.
    Purging -> u64;
}
