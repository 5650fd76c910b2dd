//! What a topic's settings mean for the promise, and what an operator should know about them.

use crate::connection::{Events, Kafka};
use crate::outcome::failure;
use crate::producer::broker_code;
use consign_plugin::prelude::*;
use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::types::RDKafkaErrorCode as Code;
use std::collections::HashMap;
use std::time::Duration;
use tokio::runtime::Handle;

/// What was found of a topic.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Settings {
    pub partitions: usize,
    /// The fewest replicas that a partition has.
    pub replicas: usize,
    pub max_message_bytes: Option<u64>,
    pub min_insync_replicas: Option<u64>,
    pub compacted: bool,
    pub unclean_election: bool,
    /// The user may not read the settings.
    pub hidden: bool,
}

/// Why a topic could not be looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NoTopic {
    /// The broker's answer.
    Refused(Code),
    /// No answer.
    NotAsked(Failure),
}

/// Looks at a topic. Blocks.
pub(crate) fn topic(
    handle: &Handle,
    kafka: &Kafka,
    name: &str,
    within: Duration,
) -> Result<Settings, NoTopic> {
    let metadata = kafka.ask(Some(name), within).map_err(NoTopic::NotAsked)?;
    let found = metadata.topics().iter().find(|topic| topic.name() == name);
    let Some(found) = found else {
        return Err(NoTopic::Refused(Code::UnknownTopicOrPartition));
    };
    if let Some(error) = found.error() {
        return Err(NoTopic::Refused(broker_code(error)));
    }
    let replicas = found.partitions().iter().map(|p| p.replicas().len()).min();
    let mut settings = Settings {
        partitions: found.partitions().len(),
        replicas: replicas.unwrap_or_default(),
        ..Settings::default()
    };
    match describe(handle, kafka, name, within) {
        Some(values) => {
            let number = |name: &str| values.get(name).and_then(|text| text.parse().ok());
            let says =
                |name: &str, part: &str| values.get(name).is_some_and(|text| text.contains(part));
            settings.max_message_bytes = number("max.message.bytes");
            settings.min_insync_replicas = number("min.insync.replicas");
            settings.compacted = says("cleanup.policy", "compact");
            settings.unclean_election = says("unclean.leader.election.enable", "true");
        }
        None => settings.hidden = true,
    }
    Ok(settings)
}

/// The topic's settings by name; none where the user may not read them.
fn describe(
    handle: &Handle,
    kafka: &Kafka,
    name: &str,
    within: Duration,
) -> Option<HashMap<String, String>> {
    let admin: AdminClient<Events> = kafka
        .client_config()
        .create_with_context(Events(Arc::default()))
        .ok()?;
    let options = AdminOptions::new().request_timeout(Some(within));
    let which = [ResourceSpecifier::Topic(name)];
    let described = handle.block_on(admin.describe_configs(which.iter(), &options));
    kafka.disposals().drop_later(admin);
    let entries = described.ok()?.pop()?.ok()?.entries;
    Some(
        entries
            .into_iter()
            .filter_map(|entry| Some((entry.name, entry.value?)))
            .collect(),
    )
}

/// What the findings come to.
pub(crate) fn judge(topic: &str, keyed: bool, found: &Result<Settings, NoTopic>) -> Inspection {
    let settings = match found {
        Ok(settings) => settings,
        Err(NoTopic::Refused(
            Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownTopicId,
        )) => return Inspection::contradicted(format!("there is no topic `{topic}`")),
        Err(NoTopic::Refused(code)) => {
            return Inspection::not_inspected(format!("topic `{topic}`: {code}"));
        }
        Err(NoTopic::NotAsked(failure)) => return Inspection::not_inspected(failure.to_string()),
    };
    if settings.hidden {
        return Inspection::not_inspected(format!(
            "topic `{topic}` is there, and the user may not read its settings (DescribeConfigs)"
        ));
    }
    let insync = settings.min_insync_replicas.unwrap_or(1);
    let limit = settings.max_message_bytes.unwrap_or_default();
    let mut inspection = Inspection::verified(format!(
        "topic `{topic}` has {} partitions, takes records of up to {limit} bytes and acknowledges with \
         {insync} of {} replicas",
        settings.partitions, settings.replicas
    ));
    let mut warn = |text: &str| inspection.warnings.push(format!("topic `{topic}` {text}"));
    if settings.replicas < 2 {
        warn("has one replica: what it acknowledged is gone with that broker's disk");
    } else if insync < 2 {
        warn(
            "acknowledges with one replica in sync (min.insync.replicas): what it acknowledged can be \
             lost with that broker",
        );
    }
    if settings.unclean_election {
        warn(
            "lets a replica that lags behind lead (unclean.leader.election.enable), which drops records",
        );
    }
    if settings.compacted && !keyed {
        warn("is compacted and refuses records without a key: set `key`");
    }
    inspection
}

/// What a source is told about a topic that is not there for it.
pub(crate) fn refusal(topic: &str, code: Code) -> Failure {
    match code {
        Code::UnknownTopicOrPartition | Code::UnknownTopic | Code::UnknownTopicId => {
            failure(code, &format!("there is no topic `{topic}`"))
        }
        Code::TopicAuthorizationFailed => {
            failure(code, &format!("the user may not read topic `{topic}`"))
        }
        other => failure(other, &format!("topic `{topic}`: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        Settings {
            partitions: 6,
            replicas: 3,
            max_message_bytes: Some(1_048_588),
            min_insync_replicas: Some(2),
            ..Settings::default()
        }
    }

    #[test]
    fn a_topic_that_keeps_what_it_acknowledged_has_no_warning() {
        let inspection = judge("t", false, &Ok(settings()));
        assert_eq!(inspection.verdict, Verdict::Verified);
        assert_eq!(inspection.warnings, Vec::<String>::new());
    }

    #[test]
    fn what_can_lose_records_is_a_warning() {
        for (change, part) in [
            (
                Settings {
                    replicas: 1,
                    ..settings()
                },
                "one replica:",
            ),
            (
                Settings {
                    min_insync_replicas: Some(1),
                    ..settings()
                },
                "min.insync.replicas",
            ),
            (
                Settings {
                    unclean_election: true,
                    ..settings()
                },
                "unclean",
            ),
            (
                Settings {
                    compacted: true,
                    ..settings()
                },
                "`key`",
            ),
        ] {
            let inspection = judge("t", false, &Ok(change));
            assert!(
                inspection.warnings.len() == 1 && inspection.warnings[0].contains(part),
                "{:?}",
                inspection.warnings
            );
        }
        let compacted = Settings {
            compacted: true,
            ..settings()
        };
        assert!(judge("t", true, &Ok(compacted)).warnings.is_empty());
    }

    #[test]
    fn a_missing_topic_contradicts_and_a_hidden_one_is_not_inspected() {
        let missing = Err(NoTopic::Refused(Code::UnknownTopicOrPartition));
        assert_eq!(judge("t", true, &missing).verdict, Verdict::Contradicted);
        for unknown in [
            Err(NoTopic::Refused(Code::TopicAuthorizationFailed)),
            Err(NoTopic::NotAsked(Failure::down(("connect", "no")))),
            Ok(Settings {
                hidden: true,
                ..settings()
            }),
        ] {
            assert_eq!(judge("t", true, &unknown).verdict, Verdict::NotInspected);
        }
    }
}
