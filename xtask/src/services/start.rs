//! Starting and stopping one instance of a service.

use super::process::Pid;
use super::spec::{Ready, Spec, Step, StopSignal, Values};
use super::state::{State, instance_folder};
use crate::error::{Context, Error, Result, failed};
use crate::system;
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Starts per `up`: a chosen port may be taken by someone else before the server binds it.
const STARTS: u32 = 3;

/// How often readiness is asked for.
const READY_POLL: Duration = Duration::from_millis(50);

/// Starts an instance, or returns the one that runs already. One that was stopped with its data kept
/// goes on with the same data and ports.
pub fn start(spec: &Spec, instance: &str, target: &Path) -> Result<State> {
    let folder = instance_folder(target, instance);
    fs::create_dir_all(&folder).context(|| format!("cannot create {}", folder.display()))?;
    let _lock = lock(target)?;
    let kept = State::read(target, instance)?;
    if let Some(state) = &kept {
        if state.service != spec.name {
            return Err(Error::Input(format!(
                "the instance {instance:?} is one of {}, not of {}",
                state.service, spec.name
            )));
        }
        if state.pid.is_some_and(Pid::is_alive) {
            return Ok(state.clone());
        }
    }
    let shared = instance_folder(target, "");
    let python = shared.join(format!("python-{}", spec.name));
    let maven = shared.join(maven_name(spec));
    let spec = &spec.clone().with_folders(&python, &maven);
    install_missing(spec, &python, &maven)?;
    let version = version(spec)?;
    let as_pinned = version.contains(&spec.version.pinned);
    if !as_pinned {
        eprintln!(
            "{} is {version:?}; the tests were last green with {}",
            spec.title, spec.version.pinned
        );
    }
    let data = data_folder(spec, instance, target)?;
    let fresh = !data.is_dir();
    let started = start_in(spec, &data, &folder.join("log"), fresh, kept);
    let (pid, values) = match started {
        Ok(started) => started,
        Err(error) => {
            if fresh {
                // Half made data must not pass for finished data the next time; the log stays.
                let _ = fs::remove_dir_all(&data);
            }
            return Err(error);
        }
    };
    let state = State {
        instance: instance.to_owned(),
        service: spec.name.clone(),
        title: spec.title.clone(),
        pid: Some(pid),
        url: values.url,
        ports: values.ports,
        version,
        as_pinned,
        data,
        log: folder.join("log"),
        stop_signal: spec.stop.signal,
        stop_within_s: spec.stop.within_s,
    };
    state.write(target)?;
    Ok(state)
}

/// The folder of a service's Java archives, named after which they are: another version is another folder.
fn maven_name(spec: &Spec) -> String {
    let which = blake3::hash(spec.install.maven.join("\n").as_bytes()).to_hex();
    format!("maven-{}-{which:.12}", spec.name)
}

/// Where an instance's data lies: beside its state, unless it runs as another user. Such a server must
/// be able to get there, and the target folder may lie in a home folder that only its owner enters.
fn data_folder(spec: &Spec, instance: &str, target: &Path) -> Result<PathBuf> {
    if user_ids(spec)?.is_none() {
        return Ok(instance_folder(target, instance).join("data"));
    }
    let whose = blake3::hash(target.as_os_str().as_encoded_bytes()).to_hex();
    let folder = format!("consign-services-{whose:.12}");
    Ok(std::env::temp_dir().join(folder).join(instance))
}

/// Starts the server on its data folder, on the ports it had or on free ones.
fn start_in(
    spec: &Spec,
    data: &Path,
    log: &Path,
    fresh: bool,
    kept: Option<State>,
) -> Result<(Pid, Values)> {
    if fresh {
        fs::create_dir_all(data).context(|| format!("cannot create {}", data.display()))?;
        give_to_user(spec, data)?;
    }
    let kept_ports = kept.map(|state| state.ports);
    let mut starts = 0;
    loop {
        starts += 1;
        let ports = match &kept_ports {
            Some(ports) => ports.clone(),
            None => free_ports(&spec.ports)?,
        };
        let mut values = Values {
            data: data.display().to_string(),
            ports,
            url: String::new(),
        };
        values.url = values.fill(&spec.url)?;
        for (name, text) in &spec.files {
            let path = data.join(name);
            fs::write(&path, values.fill(text)?)
                .context(|| format!("cannot write {}", path.display()))?;
        }
        if fresh && starts == 1 {
            for step in &spec.init {
                run_step(spec, step, &values, log)?;
            }
        }
        let since = Instant::now();
        match launch(spec, &values, log) {
            Ok(pid) => return Ok((pid, values)),
            // One that ended early may have found its port taken; one that hung would hang again.
            Err(_) if starts < STARTS && since.elapsed() < Duration::from_secs(1) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Stops an instance; false when it did not run. Without `keep` its folder goes too.
pub fn stop(target: &Path, instance: &str, keep: bool, kill: bool) -> Result<bool> {
    let _lock = lock(target)?;
    let Some(mut state) = State::read(target, instance)? else {
        return Ok(false);
    };
    let folder = instance_folder(target, instance);
    let ran = state.pid.take().filter(|pid| pid.is_alive());
    if let Some(pid) = ran {
        let asked = match (kill, state.stop_signal) {
            (true, _) => Signal::KILL,
            (false, StopSignal::Term) => Signal::TERM,
            (false, StopSignal::Int) => Signal::INT,
            (false, StopSignal::Quit) => Signal::QUIT,
        };
        end(pid, asked, Duration::from_secs(state.stop_within_s))?;
    }
    if keep {
        state.write(target)?;
    } else {
        for gone in [&state.data, &folder] {
            if gone.is_dir() {
                fs::remove_dir_all(gone).context(|| format!("cannot remove {}", gone.display()))?;
            }
        }
    }
    Ok(ran.is_some())
}

/// Ends a process: asked first, killed when it does not go in time.
fn end(pid: Pid, asked: Signal, within: Duration) -> Result<()> {
    pid.signal(asked);
    if pid.wait_gone(within) {
        return Ok(());
    }
    pid.signal(Signal::KILL);
    if pid.wait_gone(Duration::from_secs(5)) {
        Ok(())
    } else {
        failed(format!("process {} does not end", pid.id))
    }
}

/// Only one command at a time works on services; others wait here. One lock for all, since they share
/// the package manager too, and starting takes less than a second.
fn lock(target: &Path) -> Result<File> {
    let folder = instance_folder(target, "");
    let path = folder.join(".lock");
    let open = || {
        fs::create_dir_all(&folder)?;
        let file = File::create(&path)?;
        file.lock()?;
        Ok(file)
    };
    let locked: std::io::Result<File> = open();
    locked.context(|| format!("cannot lock {}", path.display()))
}

fn install_missing(spec: &Spec, python: &Path, maven: &Path) -> Result<()> {
    if !spec.install.maven.is_empty() && !maven.is_dir() {
        system::install_maven(maven, &spec.install.debian, &spec.install.maven)?;
    }
    let missing = || {
        spec.programs()
            .into_iter()
            .find(|program| system::find_program(program, &spec.path).is_none())
    };
    let Some(program) = missing() else {
        return Ok(());
    };
    if !spec.install.pypi.is_empty() {
        return system::install_python(python, &spec.install.debian, &spec.install.pypi);
    }
    if spec.install.debian.is_empty() {
        return failed(format!("{program} is not on PATH"));
    }
    system::install(&spec.install.debian)?;
    match missing() {
        None => Ok(()),
        Some(program) => failed(format!(
            "{} is installed, but {program} is not on PATH",
            spec.install.debian.join(" ")
        )),
    }
}

fn version(spec: &Spec) -> Result<String> {
    let output = command(spec, &spec.version.program)?
        .args(&spec.version.args)
        .stdin(Stdio::null())
        .output()
        .context(|| format!("cannot run {}", spec.version.program))?;
    let text = if output.stdout.is_empty() {
        output.stderr
    } else {
        output.stdout
    };
    let text = String::from_utf8_lossy(&text);
    Ok(text.lines().next().unwrap_or_default().trim().to_owned())
}

/// A command for one of the service's programs, as the service's user, with its environment.
fn command(spec: &Spec, program: &str) -> Result<Command> {
    let Some(path) = system::find_program(program, &spec.path) else {
        return failed(format!("{program} is not on PATH"));
    };
    let mut command = Command::new(path);
    command.envs(&spec.env);
    if let Some((uid, gid)) = user_ids(spec)? {
        command.uid(uid).gid(gid);
    }
    Ok(command)
}

/// The ids to run under: those of the service's user, where the caller is root.
fn user_ids(spec: &Spec) -> Result<Option<(u32, u32)>> {
    let Some(user) = &spec.user else {
        return Ok(None);
    };
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let text = fs::read_to_string("/etc/passwd").context(|| "cannot read /etc/passwd".into())?;
    match ids_in(&text, user) {
        Some(ids) => Ok(Some(ids)),
        None => failed(format!("there is no system user {user:?}")),
    }
}

/// User and group id of a name in the text of /etc/passwd.
fn ids_in(passwd: &str, user: &str) -> Option<(u32, u32)> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next() != Some(user) {
            return None;
        }
        let uid = fields.nth(1)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some((uid, gid))
    })
}

fn give_to_user(spec: &Spec, folder: &Path) -> Result<()> {
    if let Some((uid, gid)) = user_ids(spec)? {
        std::os::unix::fs::chown(folder, Some(uid), Some(gid))
            .context(|| format!("cannot hand over {}", folder.display()))?;
    }
    Ok(())
}

/// One free port for each name. All are held until all are chosen, so that no two are the same.
fn free_ports(names: &[String]) -> Result<BTreeMap<String, u16>> {
    let mut held = Vec::new();
    let mut ports = BTreeMap::new();
    for name in names {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context(|| "no port is free".into())?;
        let address = listener.local_addr().context(|| "no port is free".into())?;
        ports.insert(name.clone(), address.port());
        held.push(listener);
    }
    Ok(ports)
}

fn run_step(spec: &Spec, step: &Step, values: &Values, log: &Path) -> Result<()> {
    let (out, err) = open_log(log)?;
    let status = filled(spec, step, values)?
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        .status()
        .context(|| format!("cannot run {}", step.program))?;
    if status.success() {
        return Ok(());
    }
    failed(format!(
        "{} ended with {status}: {}",
        step.program,
        last_line(log)
    ))
}

fn filled(spec: &Spec, step: &Step, values: &Values) -> Result<Command> {
    let mut command = command(spec, &step.program)?;
    for arg in &step.args {
        command.arg(values.fill(arg)?);
    }
    Ok(command)
}

/// Starts the server and waits until it is ready. A server that is not ready in time is ended.
fn launch(spec: &Spec, values: &Values, log: &Path) -> Result<Pid> {
    let (out, err) = open_log(log)?;
    let mut child = filled(spec, &spec.start, values)?
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(err)
        // Its own group: an interrupt typed at the terminal is for the command, not for the server.
        .process_group(0)
        .spawn()
        .context(|| format!("cannot start {}", spec.start.program))?;
    match become_ready(spec, values, log, &mut child) {
        Ok(pid) => Ok(pid),
        Err(error) => {
            // It may have ended by itself; either way it must be gone and reaped.
            let _ = child.kill();
            let _ = child.wait();
            Err(error)
        }
    }
}

fn become_ready(spec: &Spec, values: &Values, log: &Path, child: &mut Child) -> Result<Pid> {
    let Some(pid) = Pid::of(child.id()) else {
        return failed(format!("{} ended at once: {}", spec.title, last_line(log)));
    };
    let end = Instant::now() + Duration::from_secs(spec.ready.within_s);
    loop {
        let ended = child
            .try_wait()
            .context(|| format!("cannot watch {}", spec.title))?;
        if let Some(status) = ended {
            return failed(format!(
                "{} ended with {status} instead of becoming ready: {}",
                spec.title,
                last_line(log)
            ));
        }
        if is_ready(spec, &spec.ready, values)? {
            break;
        }
        if Instant::now() >= end {
            return failed(format!(
                "{} was not ready after {} s; its log is {}",
                spec.title,
                spec.ready.within_s,
                log.display()
            ));
        }
        std::thread::sleep(READY_POLL);
    }
    for step in &spec.after_start {
        run_step(spec, step, values, log)?;
    }
    Ok(pid)
}

fn is_ready(spec: &Spec, ready: &Ready, values: &Values) -> Result<bool> {
    if let Some(url) = &ready.http {
        let url = values.fill(url)?;
        return Ok(crate::http::get(&url).is_ok_and(|answer| answer.status == 200));
    }
    if let Some(greeting) = &ready.greeting {
        let Some(port) = values.ports.get(&greeting.port) else {
            return Err(Error::Input(format!(
                "[ready] names the port {:?}, which is not in `ports`",
                greeting.port
            )));
        };
        return Ok(greets(*port, greeting.begins.as_bytes()));
    }
    if let Some(step) = &ready.command {
        let status = filled(spec, step, values)?
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .context(|| format!("cannot run {}", step.program))?;
        return Ok(status.success());
    }
    Ok(true)
}

/// Whether a server says `begins` first on a new connection.
fn greets(port: u16, begins: &[u8]) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let wait = Duration::from_secs(1);
    let Ok(mut stream) = TcpStream::connect_timeout(&address, wait) else {
        return false;
    };
    let mut first = vec![0; begins.len()];
    stream.set_read_timeout(Some(wait)).is_ok()
        && stream.read_exact(&mut first).is_ok()
        && first == begins
}

fn open_log(path: &Path) -> Result<(File, File)> {
    let open = || {
        let file = File::options().create(true).append(true).open(path)?;
        Ok((file.try_clone()?, file))
    };
    let opened: std::io::Result<(File, File)> = open();
    opened.context(|| format!("cannot open {}", path.display()))
}

/// The last line of a log that says something.
fn last_line(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(&text)
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("it logged nothing")
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service that is a shell script; it is ready when its data folder holds `ready`.
    fn spec(script: &str) -> Spec {
        let text = format!(
            r#"
title = "Example"
ports = ["main"]
url = "x://127.0.0.1:{{port:main}}"
install = {{ }}
version = {{ program = "echo", args = ["example 1.2.3"], pinned = "1.2" }}
init = [{{ program = "sh", args = ["-c", "echo new >> {{data}}/init"] }}]
start = {{ program = "sh", args = ["-c", "echo $$ > {{data}}/pid; {script}"] }}
ready = {{ command = {{ program = "test", args = ["-e", "{{data}}/ready"] }}, within_s = 1 }}
"#
        );
        Spec::parse("example", &text).unwrap()
    }

    fn pid_in(data: &Path) -> Option<Pid> {
        let text = fs::read_to_string(data.join("pid")).unwrap();
        Pid::of(text.trim().parse().unwrap())
    }

    #[test]
    fn an_instance_starts_once_keeps_its_data_and_ports_when_asked_and_is_removed_else() {
        let target = tempfile::tempdir().unwrap();
        let target = target.path();
        let spec = spec("touch {data}/ready; exec sleep 60");
        let first = start(&spec, "mine", target).unwrap();
        assert!(first.as_pinned, "{first:?}");
        let again = start(&spec, "mine", target).unwrap();
        assert_eq!(first.pid, again.pid, "a running instance was started again");

        assert!(stop(target, "mine", true, false).unwrap());
        assert_eq!(pid_in(&first.data), None);
        assert!(!stop(target, "mine", true, false).unwrap());
        let back = start(&spec, "mine", target).unwrap();
        assert_eq!(back.ports, first.ports);
        let inits = fs::read_to_string(first.data.join("init")).unwrap();
        assert_eq!(inits.lines().count(), 1, "init ran on kept data");

        assert!(stop(target, "mine", false, true).unwrap());
        assert!(!first.data.exists());
        assert!(State::instances(target).is_empty());
    }

    #[test]
    fn a_server_that_ends_instead_of_becoming_ready_is_reported_with_its_last_words() {
        let target = tempfile::tempdir().unwrap();
        let spec = spec("echo out of luck >&2; exit 3");
        let error = start(&spec, "mine", target.path()).unwrap_err().to_string();
        assert!(error.contains("out of luck"), "{error}");
        assert!(State::read(target.path(), "mine").unwrap().is_none());
    }

    #[test]
    fn a_server_that_is_never_ready_is_ended() {
        let target = tempfile::tempdir().unwrap();
        let script = format!("echo $$ > {}/pid; exec sleep 60", target.path().display());
        let error = start(&spec(&script), "mine", target.path()).unwrap_err();
        assert!(error.to_string().contains("not ready after 1 s"), "{error}");
        let data = instance_folder(target.path(), "mine").join("data");
        assert!(!data.exists(), "half made data was left");
        let pid = fs::read_to_string(target.path().join("pid")).unwrap();
        assert_eq!(
            Pid::of(pid.trim().parse().unwrap()),
            None,
            "it was left running"
        );
    }

    #[test]
    fn a_server_that_ignores_the_request_to_end_is_killed() {
        let target = tempfile::tempdir().unwrap();
        let mut spec = spec("trap : TERM; touch {data}/ready; while true; do sleep 1; done");
        spec.stop.within_s = 1;
        let state = start(&spec, "mine", target.path()).unwrap();
        assert!(stop(target.path(), "mine", true, false).unwrap());
        assert_eq!(pid_in(&state.data), None);
    }

    #[test]
    fn ids_are_found_by_the_whole_name() {
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\npostgresql:x:7:8::/:\npostgres:x:104:110::/:\n";
        assert_eq!(ids_in(passwd, "postgres"), Some((104, 110)));
        assert_eq!(ids_in(passwd, "post"), None);
    }
}
