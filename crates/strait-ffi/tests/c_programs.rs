//! Tests of programs in C and C++ that use the installed library: the examples, with each compiler, linked shared and
//! static.

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Linkage, c_compilers, cxx_compilers, has, installed, root, run, skip};

fn echoes(program: &Path) {
    let output = run(Command::new(program).args(["hello", "", "world"]));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "hello\n\nworld\n", "{program:?}");
}

#[test]
fn echo_in_c() {
    for compiler in c_compilers() {
        for linkage in [Linkage::Shared, Linkage::Static] {
            echoes(&compiler.build(&root().join("examples/echo.c"), linkage, &[]));
        }
    }
}

/// Shows that bad arguments give a status, with every compiler, and with the address sanitizer where available.
#[test]
fn bad_input_is_a_status() {
    everywhere("tests/c/bad_input.c", &["-D_GNU_SOURCE"]);
}

/// Shows that a thread can close and send ends while others use the ends.
#[test]
fn ends_may_be_closed_and_sent_by_other_threads() {
    everywhere("tests/c/threads.c", &["-D_GNU_SOURCE", "-pthread"]);
}

/// Shows that two threads can each use a half of an end from C, and that joined halves are the end again.
#[test]
fn halves_belong_to_one_thread_each() {
    everywhere("tests/c/halves.c", &["-D_GNU_SOURCE", "-pthread"]);
}

/// Shows what becomes of the contents and the handles of received messages that the program does not take.
#[test]
fn received_messages_are_emptied_and_closed() {
    everywhere("tests/c/received.c", &["-D_GNU_SOURCE"]);
}

/// Shows that functions return a status, `NULL` or 0 for objects whose memory the child of a fork does not have.
#[test]
fn objects_without_memory_in_a_forked_child_are_errors() {
    everywhere("tests/c/forked.c", &["-D_GNU_SOURCE"]);
}

/// Shows that data pipes work from C.
#[test]
fn streams_go_through_data_pipes() {
    everywhere("tests/c/pipes.c", &["-D_GNU_SOURCE", "-pthread"]);
}

/// Shows that calls work from C, with replies in another order than the requests.
#[test]
fn calls_have_replies() {
    everywhere("tests/c/calls.c", &["-D_GNU_SOURCE", "-pthread"]);
}

/// Shows that signals end waits of C programs with a signal guard.
#[test]
fn signals_end_waits() {
    everywhere("tests/c/signals.c", &["-D_GNU_SOURCE", "-pthread"]);
}

/// Builds and runs a test in C, with and without the address sanitizer.
fn everywhere(source: &str, more: &[&str]) {
    for compiler in c_compilers() {
        let source = root().join(source);
        run(&mut Command::new(compiler.build(&source, Linkage::Shared, more)));
        let sanitized = [more, &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]].concat();
        if compiler.has_sanitizers() {
            run(&mut Command::new(compiler.build(&source, Linkage::Shared, &sanitized)));
        }
    }
}

/// Shows that the C++ interface works without exceptions and run-time types; and with both, for the address sanitizer.
#[test]
fn results_in_cxx() {
    for compiler in cxx_compilers() {
        let source = root().join("tests/cxx/results.cpp");
        let mut ways = vec![(Linkage::Static, vec!["-pthread", "-O2", "-fno-exceptions", "-fno-rtti"])];
        if compiler.has_sanitizers() {
            ways.push((Linkage::Shared, vec!["-pthread", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]));
        }
        for (linkage, flags) in ways {
            run(&mut Command::new(compiler.build(&source, linkage, &flags)));
        }
    }
}

#[test]
fn exceptions_in_cxx() {
    for compiler in cxx_compilers() {
        let source = root().join("tests/cxx/exceptions.cpp");
        run(&mut Command::new(compiler.build(&source, Linkage::Shared, &["-pthread"])));
    }
}

/// Shows that a plug-in in a sandbox works with a region and a file, and does not get out; and that the host does not
/// wait for a plug-in that neither answers nor ends.
#[test]
fn a_plug_in_in_a_sandbox() {
    for compiler in cxx_compilers() {
        // The host starts the plug-in by its path, as any other program.
        let example = |name| compiler.build(&root().join("examples/plugin").join(name), Linkage::Shared, &[]);
        let (host, plugin) = (example("host.cpp"), example("plugin.cpp"));
        let output = run(Command::new(&host).arg(&plugin));
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "the plug-in says: done, and the picture is read-only\nit wrote 38397276, which is right\n"
        );
        let output = Command::new(&host).arg(&plugin).arg("evil").output().expect("the host");
        // The plug-in is killed by SIGSYS, and the host goes on.
        assert_eq!(String::from_utf8_lossy(&output.stdout), "no answer: peer closed (ended with 31)\n");
        assert_eq!(output.status.code(), Some(3));
        // This plug-in pauses for longer than the test may take. The shell becomes it.
        let paused = plugin.with_extension("paused");
        std::fs::write(&paused, "#!/bin/sh\nexec sleep 3600 >/dev/null 2>&1\n").expect("a script");
        std::fs::set_permissions(&paused, std::fs::Permissions::from_mode(0o755)).expect("a program");
        let begin = Instant::now();
        let output = Command::new("timeout").arg("--kill-after=1").arg("300").arg(&host).arg(&paused).output();
        let output = output.expect("the host");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.starts_with("no answer: timed out") && said.ends_with("(ended with 9)\n"), "{said}");
        assert!(begin.elapsed() < Duration::from_secs(250), "{:?}", begin.elapsed());
    }
}

/// Shows that three processes pass large frames on without a copy.
#[test]
fn frames_go_through_three_processes() {
    for compiler in cxx_compilers() {
        let program = compiler.build(&root().join("examples/frames.cpp"), Linkage::Shared, &["-O2"]);
        let output = run(Command::new(program).args(["50", "1000000"]));
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "50 frames of 1000000 bytes through three processes, every one right\n"
        );
    }
}

/// Shows that a single thread serves channels and sockets in an event loop without special support for channels.
#[test]
fn channels_in_libuv() {
    let has_libuv =
        Command::new("pkg-config").args(["--exists", "libuv"]).status().is_ok_and(|status| status.success());
    if !has_libuv {
        return skip("channels in an event loop", "libuv");
    }
    for compiler in c_compilers().into_iter().filter(|compiler| compiler.standard != "-std=c99") {
        let program = compiler.build(&root().join("examples/event_loop.c"), Linkage::Shared, &["-pthread", "-luv"]);
        let output = run(Command::new(program).args(["100", "3"]));
        let output = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.ends_with("answered in one thread: 300 by channel, 300 by socket, 300 handed over\n"),
            "{output}"
        );
    }
}

/// Shows that the service of the guide continues while clients do not read, send nonsense or die; that the service
/// closes bad clients with a reason; and that the service stops with connected clients, which get the reason.
#[test]
fn a_service_in_an_epoll_loop() {
    for compiler in c_compilers() {
        let build = |name| compiler.build(&root().join("examples").join(name), Linkage::Shared, &[]);
        let (service, client) = (build("service.c"), build("service_client.c"));
        let name = format!("service-{}-{}", std::process::id(), compiler.standard.replace('=', ""));
        let start = |program: &Path, words: &[&str]| -> Child {
            let mut command = Command::new(program);
            command.arg(&name).args(words).stdout(Stdio::piped()).spawn().expect("a program")
        };
        let output = |mut child: Child| {
            let mut text = String::new();
            child.stdout.take().expect("a pipe").read_to_string(&mut text).expect("text");
            assert!(child.wait().expect("the program ends").success(), "{text}");
            text
        };
        let mut serving = start(&service, &[]);
        let mut dies = start(&client, &["flood", "4000000"]);
        let slow = ["4000000", "1000"].map(|size| start(&client, &["flood", size]));
        let mut stays = start(&client, &["stay"]);
        let mut lines = BufReader::new(stays.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
        assert_eq!(lines.next().as_deref(), Some("connected"));
        for (count, size) in [("3000", "64"), ("30", "3000000")] {
            assert_eq!(output(start(&client, &["ask", count, size])), format!("{count} replies\n"));
        }
        dies.kill().expect("it runs, or has ended");
        dies.wait().expect("it ends");
        assert_eq!(output(start(&client, &["long"])), "closed: reason 3\n");
        slow.into_iter().for_each(|slow| assert_eq!(output(slow), "closed: reason 2\n"));
        run(Command::new("kill").arg(serving.id().to_string()));
        assert_eq!(lines.next().as_deref(), Some("closed: reason 1"));
        assert!(stays.wait().expect("it ends").success());
        let log = {
            let mut text = String::new();
            serving.stdout.take().expect("a pipe").read_to_string(&mut text).expect("text");
            text
        };
        assert!(serving.wait().expect("it ends").success() && log.ends_with("stopped\n"), "{log}");
        // The killed client may have been closed for the same reason before.
        assert!(log.matches("does not read").count() >= 2, "{log}");
    }
}

/// Shows that the guide to the service quotes the program run by the test above.
#[test]
fn the_guide_quotes_the_service() {
    let guide = std::fs::read_to_string(root().join("../..").join("docs/guides/c-service.md")).expect("the guide");
    let program = std::fs::read_to_string(root().join("examples/service.c")).expect("the program");
    let quotes: Vec<&str> =
        guide.split("\n```").skip(1).step_by(2).filter_map(|block| block.strip_prefix("c\n")).collect();
    assert!(quotes.len() >= 5, "{}", quotes.len());
    for quote in quotes {
        assert!(program.contains(quote), "not in examples/service.c:\n{quote}");
    }
}

/// Returns the files below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory").flatten() {
        match entry.file_type().expect("a type").is_dir() {
            true => found.extend(files(&entry.path())),
            false => found.push(entry.path()),
        }
    }
    found
}

/// Shows that a relative DESTDIR begins in the caller's directory, and that every user can read the installed files,
/// whatever the file mode mask of the installing user is.
#[test]
fn a_relative_destination_is_below_the_callers_directory_and_readable() {
    use std::os::unix::fs::PermissionsExt;

    let directory = installed().join("staging");
    std::fs::create_dir_all(&directory).unwrap();
    let script = format!("umask 077; exec {} --prefix /usr --library \"$1\"", root().join("install").display());
    let mut command = Command::new("sh");
    command.args(["-c", &script, "sh"]).arg(installed().join("lib/libstrait.a"));
    run(command.current_dir(&directory).env("DESTDIR", "staged"));
    for (name, mode) in [
        ("include/strait", 0o755),
        ("include/strait/strait.h", 0o644),
        ("lib/pkgconfig/strait.pc", 0o644),
        ("lib/libstrait.a", 0o644),
        ("lib/libstrait.so", 0o755),
    ] {
        let file = directory.join("staged/usr").join(name);
        let found = std::fs::metadata(&file).unwrap_or_else(|error| panic!("{file:?}: {error}")).permissions().mode();
        assert_eq!(found & 0o777, mode, "{file:?}");
    }
}

/// Shows that the libraries can be installed to Debian's directory, are stripped there, are found by pkg-config, and
/// that nothing is left after the removal.
#[test]
fn other_directories_and_removal() {
    if !has("pkg-config") || !has("objcopy") {
        return skip("another directory for libraries", "pkg-config or objcopy");
    }
    let prefix = installed().join("other");
    let library = installed().join("lib/libstrait.a");
    let install = |words: &[&str]| {
        let mut install = Command::new(root().join("install"));
        install.args(["--libdir", "lib/x86_64-linux-gnu", "--prefix"]).arg(&prefix).args(words);
        install.output().expect("the script starts")
    };
    assert!(install(&["--library", library.to_str().expect("a path")]).status.success());
    let lib = prefix.join("lib/x86_64-linux-gnu");
    let shared = lib.join("libstrait.so.0.1.0");
    let debug = lib.join(".debug/libstrait.so.0.1.0.debug");
    assert!(shared.exists() && debug.exists() && !prefix.join("lib/libstrait.so").exists());

    let mut flags = Command::new("pkg-config");
    flags.args(["--cflags", "--libs", "strait"]).env("PKG_CONFIG_PATH", lib.join("pkgconfig"));
    let flags = String::from_utf8(run(&mut flags).stdout).expect("text");
    let program = prefix.join("echo");
    let mut compile = Command::new("cc");
    compile.arg("-o").arg(&program).arg(root().join("examples/echo.c")).args(flags.split_whitespace());
    run(compile.arg(format!("-Wl,-rpath,{}", lib.display())));
    echoes(&program);
    std::fs::remove_file(&program).expect("removed");

    assert!(install(&["--uninstall"]).status.success());
    assert_eq!(files(&prefix), Vec::<PathBuf>::new());
    // A directory outside of the prefix is refused before anything is built.
    let refused = Command::new(root().join("install")).args(["--prefix", "/nowhere", "--libdir", "/lib"]).output();
    let refused = refused.expect("the script starts");
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("below the prefix"));
}

/// Shows that the CMake package works, even after a move of all files; and that a package for another version is not
/// found.
#[test]
fn a_project_of_cmake() {
    if !has("cmake") {
        return skip("a project of CMake", "cmake");
    }
    let moved = installed().join("moved");
    for part in ["include", "lib"] {
        run(Command::new("mkdir").arg("-p").arg(&moved));
        run(Command::new("cp").arg("-r").arg(installed().join(part)).arg(&moved));
    }
    let build = installed().join("cmake");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(root().join("tests/cmake")).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", moved.display()));
    configure.arg(format!("-DEXAMPLES={}", root().join("examples").display()));
    run(&mut configure);
    run(Command::new("cmake").arg("--build").arg(&build));
    echoes(&build.join("echo_shared"));
    echoes(&build.join("echo_static"));

    let version = moved.join("lib/cmake/strait/strait-config-version.cmake");
    let fits = |wanted: &str| {
        let parts: Vec<&str> = wanted.split('.').collect();
        let script = build.join("version.cmake");
        let text = format!(
            "set(PACKAGE_FIND_VERSION {wanted})\nset(PACKAGE_FIND_VERSION_COUNT {})\nset(PACKAGE_FIND_VERSION_MAJOR {})\n\
             set(PACKAGE_FIND_VERSION_MINOR {})\ninclude({})\nmessage(\"${{PACKAGE_VERSION_COMPATIBLE}}\")\n",
            parts.len(),
            parts[0],
            parts[1],
            version.display()
        );
        std::fs::write(&script, text).expect("a script");
        String::from_utf8_lossy(&run(Command::new("cmake").arg("-P").arg(&script)).stderr).trim() == "TRUE"
    };
    assert!(fits("0.1") && fits("0.1.0") && !fits("0.2") && !fits("0.0.9") && !fits("1.0"));
}

/// Shows that the shared library and each function have a version, and that nothing else is visible.
#[test]
fn symbols_have_versions() {
    let library = installed().join("lib/libstrait.so");
    let name = run(Command::new("objdump").arg("-p").arg(&library)).stdout;
    assert!(String::from_utf8_lossy(&name).contains("SONAME               libstrait.so.0.1\n"));
    let symbols = run(Command::new("nm").args(["-D", "--defined-only"]).arg(&library)).stdout;
    let symbols = String::from_utf8_lossy(&symbols);
    let functions = symbols.lines().filter(|line| line.contains(" T ")).count();
    assert!(functions > 80, "{functions}");
    for line in symbols.lines().filter(|line| !line.contains(" A STRAIT_0.1")) {
        assert!(line.contains(" T strait_") && line.ends_with("@@STRAIT_0.1"), "{line}");
    }
}

/// Shows that the examples in the documents compile without a warning, and run.
#[test]
fn examples_in_the_documents() {
    let repository = root().join("../..");
    let mut found = 0;
    for document in ["README.md", "docs/reference/c-and-cpp.md", "docs/start/hello-c.md", "docs/start/hello-cpp.md"] {
        let text = std::fs::read_to_string(repository.join(document)).expect("a document");
        for (number, block) in text.split("\n```").skip(1).step_by(2).enumerate() {
            let (language, code) = block.split_once('\n').expect("a block");
            let (extension, compilers) = match language {
                "c" => ("c", c_compilers()),
                "cpp" => ("cpp", cxx_compilers()),
                _ => continue,
            };
            found += 1;
            let stem = document.replace(['/', '.'], "-");
            let source = installed().join(format!("{stem}-{number}.{extension}"));
            std::fs::write(&source, format!("{code}\n")).expect("an example");
            for compiler in compilers {
                run(&mut Command::new(compiler.build(&source, Linkage::Shared, &[])));
            }
        }
    }
    assert!(found >= 5, "{found}");
}
