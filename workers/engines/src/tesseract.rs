//! A picture to text with tesseract, as a child process.
//!
//! A child and not the library in-process: a reading that hangs has to be ended at its deadline, and a thread cannot be ended. What the
//! child can do is kept small:
//!
//! - **It is given pictures only.** Tesseract takes a file that is no picture for a list of file names and prints the text of *those*
//!   files, so a text named `.png` would read any picture this process may read. The first bytes are checked again right here, whatever was
//!   checked before, and the child runs in an empty private directory.
//! - **It is alone.** Own process group, no environment but its search path, its data folder and the language, one thread.
//! - **It ends.** SIGKILL to the group at the deadline or on cancel; the kernel kills it when the calling thread dies (`setpriv --pdeathsig`,
//!   where util-linux is installed: setting that from Rust needs `unsafe` between fork and exec); and limits on CPU time, address space and file
//!   size end it even if nobody is left to do so.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, kill_process_group, prlimit, waitid};

use crate::EngineError;
use crate::extract::repair;
use crate::sniff::{Kind, sniff};

/// The most that is read of the child's output. A densely printed page gives about 100 kB of its table.
const MAX_OUTPUT: u64 = 2 << 20;
/// How often the cancel flag is looked at while the child works.
const TICK: Duration = Duration::from_millis(50);
/// How long a question about the installation may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// The text of one picture. Its `Debug` shows sizes only: documents do not belong into logs.
#[derive(Clone, PartialEq)]
pub struct OcrText {
    /// The words in reading order, one line per printed line, a blank line between paragraphs. Empty for a blank page.
    pub text: String,
    /// Mean over the words, 0 to 100. `None` when there is no word. Print reads at 85 and more; below 50 the text is mostly guessed.
    pub mean_confidence: Option<f32>,
    /// Number of words.
    pub words: usize,
}

impl std::fmt::Debug for OcrText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OcrText({} words, confidence {:?})", self.words, self.mean_confidence)
    }
}

/// An installed tesseract. Cheap to clone; reading starts a process of its own each time.
#[derive(Debug, Clone)]
pub struct Tesseract {
    program: PathBuf,
    /// `setpriv`, which ties the child's life to ours. Without it the resource limits are the only net.
    leash: Option<PathBuf>,
    languages: String,
    /// The most address space a reading may take, in bytes. 2 GiB: a page of 60 million pixels needs about half of it.
    pub address_space: u64,
}

impl Tesseract {
    /// Find tesseract on the search path, with English.
    ///
    /// # Errors
    /// `Unavailable` with what to install.
    pub fn find() -> Result<Tesseract, EngineError> {
        Self::find_with("eng")
    }

    /// Find tesseract on the search path, with these languages (tesseract's names joined by `+`, such as `eng+deu`).
    ///
    /// # Errors
    /// `Unavailable` when the program or a language is missing, with what to install.
    pub fn find_with(languages: &str) -> Result<Tesseract, EngineError> {
        let program = on_path("tesseract")
            .ok_or_else(|| EngineError::Unavailable("tesseract is not installed: install tesseract-ocr and tesseract-ocr-eng".into()))?;
        let found = Tesseract {
            program,
            leash: on_path("setpriv"),
            languages: languages.to_owned(),
            address_space: 2 << 30,
        };
        let listed = found.run(Path::new("/"), &[OsStr::new("--list-langs")], PATIENCE, &AtomicBool::new(false))?;
        // Some versions list to stdout and some to stderr.
        let listed = format!("{}\n{}", String::from_utf8_lossy(&listed.stdout), listed.stderr);
        match languages
            .split('+')
            .find(|wanted| wanted.is_empty() || !listed.lines().any(|line| line.trim() == *wanted))
        {
            None => Ok(found),
            Some(lost) => Err(EngineError::Unavailable(format!(
                "tesseract cannot read the language {lost:?}: install tesseract-ocr-{lost}"
            ))),
        }
    }

    /// Read the text in `png` (PNG, JPEG, TIFF, WebP, BMP or PNM; of several pages the first).
    ///
    /// # Errors
    /// `BadInput` when it is no such picture or tesseract cannot open it, `Timeout` after `deadline`, `Cancelled` within a twentieth of a
    /// second after `cancel` is set, `Unavailable` when the installation is broken, `Failed` when the child crashed or said too much.
    pub fn read(&self, png: &[u8], deadline: Duration, cancel: &AtomicBool) -> Result<OcrText, EngineError> {
        let ending = match sniff(png) {
            Kind::Png => "png",
            Kind::Jpeg => "jpg",
            Kind::Tiff => "tif",
            Kind::WebP => "webp",
            Kind::Bmp => "bmp",
            Kind::Pnm => "pnm",
            Kind::Gif | Kind::Pdf | Kind::Text | Kind::Unknown => {
                return Err(EngineError::BadInput(
                    "not an image that can be read: PNG, JPEG, TIFF, WebP, BMP or PNM is expected".into(),
                ));
            }
        };
        let broken = |error: std::io::Error| EngineError::Failed(format!("no temporary folder for reading a page: {}", error.kind()));
        let folder = tempfile::Builder::new().prefix("steadfast-ocr-").tempdir().map_err(broken)?;
        let name = format!("page.{ending}");
        std::fs::write(folder.path().join(&name), png).map_err(broken)?;
        let arguments = [
            OsStr::new(&name),
            "stdout".as_ref(),
            "-l".as_ref(),
            self.languages.as_ref(),
            "tsv".as_ref(),
        ];
        let output = self.run(folder.path(), &arguments, deadline, cancel)?;
        if output.status.success() {
            return Ok(parse(&String::from_utf8_lossy(&output.stdout)));
        }
        Err(output.failure())
    }

    fn command(&self, folder: &Path, arguments: &[&OsStr]) -> Command {
        let mut command = match &self.leash {
            Some(leash) => {
                let mut command = Command::new(leash);
                command.arg("--pdeathsig").arg("KILL").arg("--").arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command.args(arguments).current_dir(folder).env_clear().env("OMP_THREAD_LIMIT", "1");
        for kept in ["PATH", "TESSDATA_PREFIX", "LANG"] {
            if let Some(value) = std::env::var_os(kept) {
                command.env(kept, value);
            }
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        command
    }

    fn run(&self, folder: &Path, arguments: &[&OsStr], deadline: Duration, cancel: &AtomicBool) -> Result<Output, EngineError> {
        let until = Instant::now() + deadline;
        let child = self
            .command(folder, arguments)
            .spawn()
            .map_err(|error| EngineError::Unavailable(format!("tesseract cannot be started: {}", error.kind())))?;
        let mut running = Running { child };
        self.limit(&running, deadline);
        let finished = running.watch()?;
        let (stdout, stderr) = loop {
            if cancel.load(Ordering::Relaxed) {
                return Err(EngineError::Cancelled);
            }
            let left = until.saturating_duration_since(Instant::now());
            match finished.recv_timeout(left.min(TICK)) {
                Ok(said) => break said,
                Err(RecvTimeoutError::Timeout) if left.is_zero() => return Err(EngineError::Timeout),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(EngineError::Failed("tesseract's output could not be read".into())),
            }
        };
        if stdout.len() as u64 > MAX_OUTPUT {
            return Err(EngineError::Failed(format!(
                "tesseract gave more than {MAX_OUTPUT} bytes for one page"
            )));
        }
        let status = running
            .end()
            .map_err(|error| EngineError::Failed(format!("tesseract's end was not seen: {}", error.kind())))?;
        Ok(Output {
            status,
            stdout,
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        })
    }

    /// Set from outside just after the start: in between the child has opened its libraries and no picture.
    fn limit(&self, running: &Running, deadline: Duration) {
        let limits = [
            (Resource::As, self.address_space),
            (Resource::Cpu, deadline.as_secs() + 10),
            (Resource::Fsize, MAX_OUTPUT),
            // A crash must not write the page to a core file.
            (Resource::Core, 0),
        ];
        for (resource, limit) in limits {
            // A child that is gone already needs no limit.
            let _ = prlimit(
                running.pid(),
                resource,
                Rlimit {
                    current: Some(limit),
                    maximum: Some(limit),
                },
            );
        }
    }
}

struct Output {
    status: ExitStatus,
    stdout: Vec<u8>,
    stderr: String,
}

impl Output {
    /// Tesseract exits with 1 for everything; what it printed tells the installation's fault from the picture's. Its words are not
    /// passed on: they name paths.
    fn failure(&self) -> EngineError {
        let said = |words: &[&str]| words.iter().any(|word| self.stderr.contains(word));
        if said(&["bad_alloc", "cannot allocate", "Cannot allocate"]) {
            EngineError::Failed("tesseract ran out of the memory it is allowed for one page".into())
        } else if let Some(signal) = self.status.signal() {
            EngineError::Failed(format!("tesseract was ended by signal {signal}"))
        } else if said(&[
            "Error opening data file",
            "Failed loading language",
            "Could not initialize tesseract",
            "error while loading shared",
        ]) {
            EngineError::Unavailable("tesseract cannot load its language data: install tesseract-ocr-eng or correct TESSDATA_PREFIX".into())
        } else if said(&["Image too large"]) {
            EngineError::BadInput("the picture is too large to be read: scan it at a lower resolution".into())
        } else if matches!(self.status.code(), Some(126 | 127)) {
            // The leash started and did not find what it should hold.
            EngineError::Unavailable("tesseract cannot be started any more: install tesseract-ocr again".into())
        } else if self.status.code() == Some(1) {
            EngineError::BadInput("the picture is damaged and cannot be read: send it again".into())
        } else {
            EngineError::Failed(format!("tesseract ended with code {}", self.status.code().unwrap_or(-1)))
        }
    }
}

/// What the child wrote to stdout and to stderr.
type Said = (Vec<u8>, Vec<u8>);

/// A child that does not outlive this value.
struct Running {
    child: Child,
}

impl Running {
    fn pid(&self) -> Option<Pid> {
        i32::try_from(self.child.id()).ok().and_then(Pid::from_raw)
    }

    /// Collect the output on threads and report once the child has ended, without reaping it: until we reap, its number belongs to it,
    /// and killing the group cannot hit a stranger.
    fn watch(&mut self) -> Result<Receiver<Said>, EngineError> {
        let lost = || EngineError::Failed("tesseract's output could not be read".into());
        let stdout = self.child.stdout.take().ok_or_else(lost)?;
        let mut stderr = self.child.stderr.take().ok_or_else(lost)?;
        let pid = self.pid().ok_or_else(lost)?;
        let start = |name: &str, work: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.into())
                .spawn(work)
                .map_err(|_| EngineError::Failed("no thread to read a page with".into()))
        };
        let (say, said) = sync_channel(1);
        start(
            "ocr-errors",
            Box::new(move || {
                let mut text = Vec::new();
                // The first words tell the reason; the rest is read and dropped, so that the child never waits for us.
                let _ = stderr.by_ref().take(16 << 10).read_to_end(&mut text);
                let _ = say.send(text);
                let _ = std::io::copy(&mut stderr, &mut std::io::sink());
            }),
        )?;
        let (tell, told) = sync_channel(1);
        start(
            "ocr-output",
            Box::new(move || {
                let mut text = Vec::new();
                let _ = stdout.take(MAX_OUTPUT + 1).read_to_end(&mut text);
                if text.len() as u64 <= MAX_OUTPUT {
                    let _ = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
                }
                let _ = tell.send((text, said.recv().unwrap_or_default()));
            }),
        )?;
        Ok(told)
    }

    fn end(&mut self) -> std::io::Result<ExitStatus> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Ok(status);
        }
        if let Some(pid) = self.pid() {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        self.child.wait()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nothing is left to tell: whoever drops it early has its reason.
        let _ = self.end();
    }
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/local/bin:/usr/bin:/bin"));
    std::env::split_paths(&path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(program))
        .find(|file| {
            file.metadata()
                .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
        })
}

/// Tesseract's table: level, page, block, paragraph, line, word, left, top, width, height, confidence, text. Level 5 is a word.
fn parse(table: &str) -> OcrText {
    let (mut text, mut words, mut sum) = (String::new(), 0_usize, 0_f64);
    let mut last: Option<[&str; 4]> = None;
    for row in table.lines() {
        let cells: Vec<&str> = row.splitn(12, '\t').collect();
        let &["5", page, block, paragraph, line, _, _, _, _, _, confidence, word] = cells.as_slice() else {
            continue;
        };
        let (word, Ok(confidence)) = (word.trim(), confidence.parse::<f64>()) else {
            continue;
        };
        if word.is_empty() || confidence < 0.0 {
            continue;
        }
        let place = [page, block, paragraph, line];
        text.push_str(match last {
            None => "",
            Some(before) if before == place => " ",
            Some(before) if before[..3] == place[..3] => "\n",
            Some(_) => "\n\n",
        });
        text.push_str(word);
        last = Some(place);
        words += 1;
        sum += confidence;
    }
    OcrText {
        text: repair(text),
        mean_confidence: (words > 0).then(|| (sum / words as f64) as f32),
        words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// A stand-in for the program: what matters here is how the child is started and ended, not what it reads.
    fn scripted(folder: &Path, script: &str) -> Tesseract {
        let program = folder.join("tesseract");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("made executable");
        Tesseract {
            program,
            leash: on_path("setpriv"),
            languages: "eng".into(),
            address_space: 2 << 30,
        }
    }

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\nand so on";
    const LONG: Duration = Duration::from_secs(30);

    fn never() -> AtomicBool {
        AtomicBool::new(false)
    }

    fn gone(pid_file: &Path) -> bool {
        let pid = fs::read_to_string(pid_file).expect("the child wrote its number");
        // A killed orphan may stay a zombie for a moment until its new parent collects it.
        fs::read_to_string(format!("/proc/{}/stat", pid.trim())).map_or(true, |stat| stat.contains(") Z"))
    }

    #[test]
    fn words_become_lines_and_paragraphs() {
        let table = "level\tpage_num\tblock_num\tpar_num\tline_num\tword_num\tleft\ttop\twidth\theight\tconf\ttext\n\
            1\t1\t0\t0\t0\t0\t0\t0\t100\t100\t-1\t\n\
            5\t1\t1\t1\t1\t1\t0\t0\t1\t1\t90\tThe\n\
            5\t1\t1\t1\t1\t2\t0\t0\t1\t1\t80.5\ttenant\n\
            5\t1\t1\t1\t2\t1\t0\t0\t1\t1\t70\tleaves\n\
            5\t1\t1\t1\t2\t2\t0\t0\t1\t1\t-1\tghost\n\
            5\t1\t1\t1\t2\t3\t0\t0\t1\t1\t95\t \n\
            5\t1\t2\t1\t1\t1\t0\t0\t1\t1\t60\tSoon\n";
        let read = parse(table);
        assert_eq!(read.text, "The tenant\nleaves\n\nSoon");
        assert_eq!(read.words, 4);
        assert!((read.mean_confidence.expect("four words") - 75.125).abs() < 0.001);
        assert_eq!(
            parse(""),
            OcrText {
                text: String::new(),
                mean_confidence: None,
                words: 0
            }
        );
    }

    #[test]
    fn what_is_no_picture_never_reaches_the_child() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let trace = folder.path().join("started");
        let engine = scripted(folder.path(), &format!("touch {}", trace.display()));
        for bytes in [&b"/etc/hostname\n"[..], b"", b"%PDF-1.7\n", b"GIF89a\x01\0"] {
            let error = engine.read(bytes, LONG, &never()).expect_err("no picture");
            assert!(
                matches!(&error, EngineError::BadInput(text) if text.starts_with("not an image")),
                "{error}"
            );
        }
        assert!(!trace.exists());
    }

    #[test]
    fn the_child_is_alone() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let seen = folder.path().join("seen");
        let engine = scripted(
            folder.path(),
            // The limits are put on it from outside, a moment after its start.
            &format!(
                "until [ \"$(ulimit -v)\" != unlimited ]; do :; done; {{ env; ls; pwd; ulimit -v; ulimit -c; }} > {}",
                seen.display()
            ),
        );
        engine.read(PNG, LONG, &never()).expect("it ended well");
        let seen = fs::read_to_string(seen).expect("it looked around");
        assert!(seen.contains("OMP_THREAD_LIMIT=1\n"), "{seen}");
        for line in seen.lines().filter(|line| line.contains('=')) {
            let name = line.split('=').next().unwrap_or_default();
            // The shell of the stand-in adds the last four by itself.
            let known = ["PATH", "TESSDATA_PREFIX", "LANG", "OMP_THREAD_LIMIT", "PWD", "OLDPWD", "SHLVL", "_"];
            assert!(known.contains(&name), "the child sees {name}");
        }
        assert!(seen.contains("\npage.png\n") && seen.contains("steadfast-ocr-"), "{seen}");
        assert!(
            seen.contains(&format!("\n{}\n0\n", (2_u64 << 30) / 1024)),
            "limits in force: {seen}"
        );
        let folder_then = seen.lines().find(|line| line.starts_with('/')).expect("its folder");
        assert!(!Path::new(folder_then).exists(), "the page is removed");
    }

    #[test]
    fn the_deadline_kills_the_child_and_its_children() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let (own, grandchild) = (folder.path().join("own"), folder.path().join("grandchild"));
        let script = format!("sleep 600 & echo $! > {}; echo $$ > {}; wait", grandchild.display(), own.display());
        let engine = scripted(folder.path(), &script);
        let started = Instant::now();
        let error = engine
            .read(PNG, Duration::from_millis(700), &never())
            .expect_err("it never ends by itself");
        assert_eq!(error, EngineError::Timeout);
        assert!(started.elapsed() < Duration::from_secs(10));
        assert!(gone(&own) && gone(&grandchild));
    }

    #[test]
    fn cancel_is_heard_while_the_child_works() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let ready = folder.path().join("ready");
        let engine = scripted(
            folder.path(),
            &format!("echo $$ > {}.new; mv {0}.new {0}; exec sleep 600", ready.display()),
        );
        let cancel = never();
        std::thread::scope(|scope| {
            let reading = scope.spawn(|| engine.read(PNG, Duration::from_secs(300), &cancel));
            while !ready.exists() {
                std::thread::yield_now();
            }
            cancel.store(true, Ordering::Relaxed);
            assert_eq!(reading.join().expect("no panic"), Err(EngineError::Cancelled));
        });
        assert!(gone(&ready));
    }

    #[test]
    fn a_flood_is_cut_off_and_failures_are_told_apart() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let read = |script: &str| scripted(folder.path(), script).read(PNG, LONG, &never()).expect_err("it fails");
        assert!(matches!(read("exec cat /dev/zero"), EngineError::Failed(text) if text.contains("more than")));
        assert!(matches!(
            read("echo 'Error opening data file ./eng.traineddata' >&2; exit 1"),
            EngineError::Unavailable(_)
        ));
        assert!(
            matches!(read("echo 'Error in pixReadStream /secret/path' >&2; exit 1"), EngineError::BadInput(text) if !text.contains("secret"))
        );
        assert!(matches!(read("echo 'std::bad_alloc' >&2; kill -ABRT $$"), EngineError::Failed(text) if text.contains("memory")));
        assert!(matches!(read("exit 127"), EngineError::Unavailable(_)));
        assert!(matches!(read("kill -SEGV $$"), EngineError::Failed(text) if text.contains("signal 11")));
    }
}
