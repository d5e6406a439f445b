package fakenode

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// shell implements in memory the few commands that tests of streams need. It never starts a process. Files are kept
// as long as the node runs.
type shell struct {
	mu    sync.Mutex
	files map[string]map[string][]byte // by pod, then path
}

// streams are the standard streams of a command.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// ExecInContainer implements [remotecommand.Executor].
//
//	echo WORD…    warn WORD…    cat [FILE]    exit N    sleep SECONDS
//	test -d DIR   tar cf - FILE   tar xmf - -C DIR      (as kubectl cp calls them)
func (s *shell) ExecInContainer(ctx context.Context, pod, _, _ string, cmd []string, in io.Reader, out, err io.WriteCloser, tty bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	st := streams{in: in, out: io.Discard, err: io.Discard}
	if st.in == nil {
		st.in = strings.NewReader("")
	}
	if out != nil {
		st.out = out
	}
	if err != nil {
		st.err = err
	}
	if tty {
		st.err = st.out
	}
	if len(cmd) == 0 {
		return exit(st, 126, "no command")
	}
	return s.run(ctx, pod, cmd[0], cmd[1:], st)
}

func exit(st streams, code int, format string, args ...any) error {
	if format != "" {
		fmt.Fprintf(st.err, format+"\n", args...)
	}
	return utilexec.CodeExitError{Err: fmt.Errorf("exit %d", code), Code: code}
}

func (s *shell) run(ctx context.Context, pod, name string, args []string, st streams) error {
	switch name {
	case "echo":
		_, err := fmt.Fprintln(st.out, strings.Join(args, " "))
		return err
	case "warn":
		_, err := fmt.Fprintln(st.err, strings.Join(args, " "))
		return err
	case "cat":
		if len(args) == 0 {
			_, err := io.Copy(st.out, st.in)
			return err
		}
		b, ok := s.read(pod, args[0])
		if !ok {
			return exit(st, 1, "cat: %s: no such file", args[0])
		}
		_, err := st.out.Write(b)
		return err
	case "exit":
		if len(args) == 1 {
			if n, err := strconv.Atoi(args[0]); err == nil && n > 0 && n < 256 {
				return exit(st, n, "")
			}
		}
		return nil
	case "sleep":
		if len(args) == 1 {
			if n, err := strconv.ParseFloat(args[0], 64); err == nil {
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Duration(n * float64(time.Second))):
					return nil
				}
			}
		}
	case "test":
		if len(args) == 2 && args[0] == "-d" && strings.HasSuffix(args[1], "/") {
			return nil
		}
		return exit(st, 1, "")
	case "tar":
		return s.tar(pod, args, st)
	}
	return exit(st, 127, "%s %s: no such command on a fake node", name, strings.Join(args, " "))
}

func (s *shell) read(pod, name string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.files[pod][path.Join("/", name)]
	return b, ok
}

func (s *shell) tar(pod string, args []string, st streams) error {
	switch {
	case len(args) == 3 && args[0] == "cf" && args[1] == "-":
		b, ok := s.read(pod, args[2])
		if !ok {
			return exit(st, 2, "tar: %s: no such file", args[2])
		}
		w := tar.NewWriter(st.out)
		err := w.WriteHeader(&tar.Header{Name: strings.TrimPrefix(args[2], "/"), Mode: 0o644, Size: int64(len(b))})
		if err == nil {
			_, err = w.Write(b)
		}
		return errors.Join(err, w.Close())
	case len(args) > 1 && strings.Contains(args[0], "x") && slices.Contains(args, "-"):
		dir := "/"
		if i := slices.Index(args, "-C"); i >= 0 && i+1 < len(args) {
			dir = args[i+1]
		}
		r := tar.NewReader(st.in)
		for {
			h, err := r.Next()
			if err == io.EOF {
				return nil
			}
			if err != nil {
				return exit(st, 2, "tar: %v", err)
			}
			var b bytes.Buffer
			if _, err := io.Copy(&b, io.LimitReader(r, 64<<20)); err != nil {
				return exit(st, 2, "tar: %v", err)
			}
			s.mu.Lock()
			if s.files[pod] == nil {
				s.files[pod] = map[string][]byte{}
			}
			s.files[pod][path.Join("/", dir, h.Name)] = b.Bytes()
			s.mu.Unlock()
		}
	}
	return exit(st, 2, "tar %s: not on a fake node", strings.Join(args, " "))
}
