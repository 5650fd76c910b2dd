//! The durable consumer behind `nats.consume`: found or created, checked, its settings compared.

use crate::config::{ConsumeConfig, Deliver};
use crate::connection::Session;
use async_nats::jetstream::consumer::{self, AckPolicy, DeliverPolicy, pull};
use async_nats::jetstream::stream;
use consign_plugin::prelude::*;
use std::time::Duration;

/// A lease is never extended more often than three times in this.
const SHORTEST_LEASE: Duration = Duration::from_millis(300);

/// Finds or creates the consumer, and reads the stream's incarnation.
pub(crate) async fn open(
    session: &Session,
    config: &ConsumeConfig,
) -> Result<(consumer::Consumer<pull::Config>, String), Failure> {
    let stream = session.jetstream.get_stream(&config.stream).await;
    let stream = stream.map_err(|error| stream_failure(&config.stream, &error))?;
    let created = stream.cached_info().created.unix_timestamp_nanos();
    let incarnation = format!("{}@{created}", config.stream);
    let existing = match stream.consumer_info(&config.consumer).await {
        Ok(info) => Some(info),
        Err(error) => match error.kind() {
            async_nats::jetstream::context::ConsumerInfoErrorKind::NotFound => None,
            _ => return Err(Failure::down(("consumer", error.to_string()))),
        },
    };
    if let Some(info) = &existing {
        usable(info)?;
        for warning in warnings(&info.config, config) {
            tracing::warn!(
                consumer = config.consumer,
                stream = config.stream,
                "{warning}"
            );
        }
    } else if !config.create {
        let message = format!(
            "stream `{}` has no consumer `{}`, and `create` is false",
            config.stream, config.consumer
        );
        return Err(Failure::denied(("no_consumer", message)));
    }
    if stream.cached_info().config.retention == stream::RetentionPolicy::WorkQueue
        && config.deliver != Deliver::All
    {
        return Err(Failure::config((
            "deliver",
            "a work-queue stream allows only `deliver: all`",
        )));
    }
    let consumer = match existing {
        Some(_) => stream
            .get_consumer(&config.consumer)
            .await
            .map_err(|error| error.to_string()),
        None => stream
            .create_consumer(wanted(config))
            .await
            .map_err(|error| error.to_string()),
    };
    let consumer = consumer.map_err(|error| Failure::other(("consumer", error)))?;
    Ok((consumer, incarnation))
}

fn stream_failure(name: &str, error: &async_nats::jetstream::context::GetStreamError) -> Failure {
    use async_nats::jetstream::context::GetStreamErrorKind as E;
    match error.kind() {
        E::JetStream(error) if error.code() == 404 => {
            Failure::denied(("no_stream", format!("there is no stream `{name}`")))
        }
        E::JetStream(error) if error.code() < 500 => {
            Failure::denied(("jetstream", error.to_string()))
        }
        E::EmptyName | E::InvalidStreamName => Failure::config(("stream", error.to_string())),
        _ => Failure::down(("jetstream", error.to_string())),
    }
}

fn wanted(config: &ConsumeConfig) -> pull::Config {
    pull::Config {
        durable_name: Some(config.consumer.clone()),
        deliver_policy: match config.deliver {
            Deliver::All => DeliverPolicy::All,
            Deliver::Last => DeliverPolicy::Last,
            Deliver::LastPerSubject => DeliverPolicy::LastPerSubject,
            Deliver::New => DeliverPolicy::New,
        },
        ack_policy: AckPolicy::Explicit,
        ack_wait: config.ack_wait.get(),
        filter_subject: config.filter_subject.clone().unwrap_or_default(),
        max_ack_pending: config.max_ack_pending.into(),
        ..pull::Config::default()
    }
}

/// How long the server waits for a sign of life: with a backoff, its shortest step.
pub(crate) fn lease_time(config: &consumer::Config) -> Duration {
    let steps = config.backoff.iter().copied();
    let shortest = steps.chain([config.ack_wait]).min();
    shortest.unwrap_or_default().max(SHORTEST_LEASE)
}

/// Whether an existing consumer can be used at all.
fn usable(info: &consumer::Info) -> Result<(), Failure> {
    if info.config.deliver_subject.is_some() {
        let message = format!(
            "consumer `{}` is a push consumer; this needs a pull consumer",
            info.name
        );
        return Err(Failure::config(("push_consumer", message)));
    }
    if info.config.ack_policy != AckPolicy::Explicit {
        let message = format!(
            "consumer `{}` has another ack_policy than explicit",
            info.name
        );
        return Err(Failure::config(("ack_policy", message)));
    }
    Ok(())
}

/// What an operator should know about a consumer that exists.
fn warnings(found: &consumer::Config, config: &ConsumeConfig) -> Vec<String> {
    let mut warnings = Vec::new();
    if found.max_deliver > 0 {
        warnings.push(format!(
            "max_deliver is {}: a message that was handed over so often without an acknowledgement never comes again",
            found.max_deliver
        ));
    }
    if found.ack_wait != config.ack_wait.get() {
        warnings.push(format!(
            "ack_wait is {:?} there, {} here; theirs counts",
            found.ack_wait, config.ack_wait
        ));
    }
    if found.max_ack_pending != i64::from(config.max_ack_pending) {
        warnings.push(format!(
            "max_ack_pending is {} there, {} here; theirs counts",
            found.max_ack_pending, config.max_ack_pending
        ));
    }
    if found.filter_subject != config.filter_subject.clone().unwrap_or_default() {
        warnings.push(format!(
            "filter_subject is `{}` there; theirs counts",
            found.filter_subject
        ));
    }
    if !found.backoff.is_empty() {
        warnings.push("backoff is set there: it replaces ack_wait for redeliveries".to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_step_of_a_backoff_is_the_lease() {
        let seconds = Duration::from_secs;
        let mut config = consumer::Config {
            ack_wait: seconds(30),
            ..Default::default()
        };
        assert_eq!(lease_time(&config), seconds(30));
        config.backoff = vec![seconds(5), seconds(60)];
        assert_eq!(lease_time(&config), seconds(5));
        config.backoff = vec![Duration::ZERO];
        assert_eq!(lease_time(&config), SHORTEST_LEASE);
    }
}
