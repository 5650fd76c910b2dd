//! Consign: the host and its command line.

mod cli;
mod client;
mod commands;
#[cfg(test)]
mod docs;
mod output;
mod problems;
mod session;

use clap::Parser as _;
use cli::{Cli, Command, New, PluginsCommand, Show};
use consign_runtime::operator::Request;
use output::{CliError, Output};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // clap's own codes: 0 for help and version, 2 for wrong input.
            drop(error.print());
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    let json = cli.json;
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error.print(json);
            error.exit_code()
        }
    }
}

fn run(cli: Cli) -> Result<(), CliError> {
    let out = Output { json: cli.json };
    match cli.command {
        Command::Run { file } => commands::run::run(&file),
        Command::Check {
            paths,
            live,
            strict,
        } => commands::check::run(out, &paths, live, strict),
        Command::Test { file, cases, bless } => commands::test::run(out, &file, &cases, bless),
        Command::Explain {
            subject,
            message,
            adapter,
        } => match subject {
            Some(subject) => {
                commands::explain::run(out, &subject, message.as_deref(), adapter.as_deref())
            }
            None => commands::explain::codes(out),
        },
        Command::Plugins(args) => match args.command {
            None => commands::plugins::list(out, &args.folders),
            Some(PluginsCommand::Verify { file }) => commands::plugins::verify(out, &file),
            Some(PluginsCommand::Docs { name }) => {
                commands::plugins::docs(out, &args.folders, name.as_deref())
            }
            Some(PluginsCommand::Lock { file }) => {
                commands::plugins::lock(out, &args.folders, &file)
            }
        },
        Command::New {
            what:
                New::Plugin {
                    name,
                    kind,
                    into,
                    sdk,
                },
        } => commands::new::plugin(out, &name, kind, &into, sdk.as_deref()),
        Command::Promises { folders, markdown } => commands::promises::run(out, &folders, markdown),
        Command::Schema { folders } => commands::schema::run(&folders),
        Command::Show {
            what: Show::Config { file },
        } => commands::show::config(out, &file),
        Command::Vrl {
            expression,
            message,
        } => commands::vrl::run(out, &expression, message.as_deref()),
        Command::Events {
            target,
            data_dir,
            code,
            level,
            adapter,
            limit,
            follow,
            jsonl,
        } => {
            let filter = commands::events::Filter {
                code,
                level,
                adapter,
                limit,
            };
            let from = commands::events::From {
                target: &target,
                data_dir: data_dir.as_deref(),
            };
            commands::events::run(out, &from, &filter, follow, jsonl)
        }
        Command::Status { target, watch } => commands::status::run(out, &target, watch),
        Command::Outages {
            place,
            connection,
            limit,
        } => commands::control::outages(out, &place, connection, limit),
        Command::Trace { target, what } => commands::control::trace(out, &target, what),
        Command::Drill {
            target,
            connection,
            duration,
            swallow_replies,
            yes,
            wait,
        } => {
            let drill = commands::control::Drill {
                connection,
                duration,
                swallow_replies,
                yes,
                wait,
            };
            commands::control::drill(out, &target, drill)
        }
        Command::Pause { target, subject } => {
            commands::control::switch(out, &target, Request::Pause { subject })
        }
        Command::Resume { target, subject } => {
            commands::control::switch(out, &target, Request::Resume { subject })
        }
        Command::Reload { target } => commands::control::reload(out, &target),
        Command::Wait {
            target,
            what,
            lanes,
            timeout,
        } => commands::control::wait(out, &target, what, &lanes, &timeout),
        Command::Failed(command) => commands::failed::run(out, *command),
        Command::Buffer { act } => commands::buffer::run(out, act),
        Command::Jobs(args) => commands::jobs::run(out, &args),
        Command::Completions { shell } => {
            let mut command = <Cli as clap::CommandFactory>::command();
            clap_complete::generate(shell, &mut command, "consign", &mut std::io::stdout());
            Ok(())
        }
        Command::Gen {
            folder,
            folders,
            proven,
            source_digests,
        } => commands::generate::run(
            &folder,
            &folders,
            proven.as_deref(),
            source_digests.as_deref(),
        ),
    }
}
