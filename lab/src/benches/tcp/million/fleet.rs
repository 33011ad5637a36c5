//! Helper processes at the other end of pipes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use ringway_testnet::Namespace;

use crate::{Error, Result, programs};

/// A process of this binary that takes orders. It dies with the thread that started it.
pub(super) struct Helper {
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Helper {
    /// Starts one in the namespace, and waits until it is ready.
    pub(super) fn start(namespace: &Namespace, job: &str) -> Result<Self> {
        let binary = programs::own()?;
        let failed = |source| Error::Run { program: binary.display().to_string(), source };
        let mut command = namespace.command(&binary);
        command.args(["bench", "inner", job]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut process = command.spawn().map_err(failed)?;
        let missing = || failed(std::io::ErrorKind::BrokenPipe.into());
        let answers = BufReader::new(process.stdout.take().ok_or_else(missing)?);
        let orders = process.stdin.take();
        let mut helper = Self { process, orders, answers };
        match helper.answer()?.as_str() {
            "ready" => Ok(helper),
            other => Err(helper.failed(other)),
        }
    }

    /// Gives an order; the answer is still to come.
    pub(super) fn order(&mut self, line: &str) -> Result<()> {
        let sent = self.orders.as_mut().map(|pipe| writeln!(pipe, "{line}"));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(self.failed("it is gone")),
        }
    }

    /// The answer to the order before.
    pub(super) fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => Err(self.failed("it ended before it answered")),
            Ok(_) => Ok(line.trim_end().to_owned()),
            Err(error) => Err(self.failed(&error.to_string())),
        }
    }

    /// Numbers of an answer.
    pub(super) fn numbers<const N: usize>(&mut self) -> Result<[u64; N]> {
        let answer = self.answer()?;
        let numbers: Vec<u64> = answer.split(' ').filter_map(|word| word.parse().ok()).collect();
        numbers.try_into().map_err(|_| self.failed(&format!("it answered {answer:?}")))
    }

    /// No more orders: it takes its sockets down and ends.
    pub(super) fn dismiss(&mut self) {
        self.orders = None;
    }

    /// Waits for its end after [`Helper::dismiss`].
    pub(super) fn wait(mut self) {
        let _ = self.process.wait();
    }

    fn failed(&self, what: &str) -> Error {
        let program = format!("helper process {}", self.process.id());
        Error::Failed { program, output: format!("{what}; see what it said before") }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        // Ended already: fine.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
