package apiproxy_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// request runs one request from beginning to end.
func (s *env) request(t *testing.T, method, target string) error {
	t.Helper()
	r := request(method, target)
	v := s.Begin(r)
	req, err := apiproxy.ParseRequest(r.Method, r.URL)
	if err != nil {
		t.Fatal(err)
	}
	v.SetRequest(&req)
	v.SetRoute("", "here")
	if err := v.RequireAudit(); err != nil {
		v.End(apiproxy.Result{Code: 503, Reason: "ServiceUnavailable"})
		return err
	}
	v.End(apiproxy.Result{Code: 200})
	return nil
}

const (
	readPath  = "/api/v1/namespaces/a/pods/x"
	execPath  = "/api/v1/namespaces/a/pods/x/exec"
	tokenPath = "/api/v1/namespaces/a/serviceaccounts/x/token"
)

// AU-04: while the sink is down or the disk is full, requests that give access to a container or issue a
// credential are refused. Other requests continue. The log counts the lost lines, and recovers.
func TestAU04SinkDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newEnv(t, apiproxy.AuditLogConfig{Queue: 20})
		s.output.set(func(p []byte) (int, error) { return 0, syscall.ENOSPC })
		if err := s.request(t, "POST", execPath); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("exec: %v", err)
		}
		began := time.Now()
		for range 100 {
			if err := s.request(t, "GET", readPath); err != nil {
				t.Errorf("read: %v", err)
			}
		}
		for _, c := range [][2]string{{"POST", execPath}, {"GET", "/api/v1/namespaces/a/pods/x/attach"}, {"POST", "/api/v1/namespaces/a/pods/x/portforward"},
			{"GET", "/api/v1/namespaces/a/services/x/proxy/a"}, {"GET", "/api/v1/nodes/x/proxy/run"}, {"POST", tokenPath}} {
			if err := s.request(t, c[0], c[1]); err == nil {
				t.Errorf("%s is allowed", c[1])
			}
		}
		if took := time.Since(began); took > 10*time.Millisecond {
			t.Errorf("requests were delayed for %v", took)
		}
		stats := s.telemetry.Stats()
		switch {
		case stats.Up:
			t.Errorf("stats.Up is true; stats = %+v", stats)
		case stats.Waiting > 20:
			t.Errorf("stats.Waiting = %v, want at most 20", stats.Waiting)
		case stats.Lost == 0:
			t.Errorf("stats.Lost = %v", stats.Lost)
		}
		if got := value(t, s.Metrics, `mca_refused_total{reason="audit"}`); got != "7" {
			t.Errorf("%s refused", got)
		}
		s.output.set(nil)
		time.Sleep(10 * time.Second)
		if err := s.request(t, "POST", execPath); err != nil {
			t.Errorf("exec, healed: %v", err)
		}
		s.stop()
		var lost, written int64
		for _, l := range auditLines(t, s.output.String()) {
			if l.Stage == "Gap" {
				lost += l.Lost
				continue
			}
			written++
		}
		// A read has one line. Each of the 7 refused requests has two, and so has the one that was accepted.
		if lost != stats.Lost || written+lost != 100+14+2 {
			t.Errorf("%d lines written, %d lost, counted %d", written, lost, stats.Lost)
		}
		if stats := s.telemetry.Stats(); stats.Waiting != 0 || stats.Lost != lost {
			t.Errorf("%+v", stats)
		}
		if n := strings.Count(s.log.String(), "audit log cannot be written"); n != 1 {
			t.Errorf("told %d times", n)
		}
	})
}

// AU-04: a blocked sink delays requests that must be recorded for a limited time, and no others.
func TestAU04SinkSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		w := writerFunc(func(p []byte) (int, error) { <-hang; return len(p), nil })
		s := newEnv(t, apiproxy.AuditLogConfig{Writer: w, Delay: 2 * time.Second})
		began := time.Now()
		if err := s.request(t, "POST", execPath); err == nil || time.Since(began) != 2*time.Second {
			t.Errorf("exec: %v after %v", err, time.Since(began))
		}
		if err := s.request(t, "POST", execPath); err == nil || time.Since(began) != 2*time.Second { // the state is known by now
			t.Errorf("the next exec: %v after %v", err, time.Since(began))
		}
		for range 5000 {
			s.request(t, "GET", readPath)
		}
		if time.Since(began) != 2*time.Second || s.telemetry.Stats().Waiting > 1024 {
			t.Errorf("after %v: %+v", time.Since(began), s.telemetry.Stats())
		}
		close(hang)
		time.Sleep(time.Second)
		if err := s.request(t, "POST", execPath); err != nil {
			t.Errorf("exec: %v", err)
		}
		s.stop()
	})
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }

// TestTornLine checks that an interrupted write leaves a part that does not parse, and that each line is
// written once.
func TestTornLine(t *testing.T) {
	for cut, want := range map[int]int{10: 2, 1: 1} { // without its line feed a line is complete
		synctest.Test(t, func(t *testing.T) {
			s := newEnv(t, apiproxy.AuditLogConfig{})
			s.output.set(func(p []byte) (int, error) { return len(p) - cut, syscall.ENOSPC })
			s.request(t, "GET", readPath)
			synctest.Wait()
			s.output.set(nil)
			time.Sleep(10 * time.Second)
			s.request(t, "GET", readPath+"y")
			s.stop()
			all := strings.Split(strings.TrimSuffix(s.output.String(), "\n"), "\n")
			if len(all) != want+1 || want == 2 && !strings.HasPrefix(all[1], all[0]) {
				t.Fatalf("cut by %d: %q", cut, all)
			}
			whole := auditLines(t, strings.Join(all[len(all)-2:], "\n"))
			if whole[0].ObjectRef.Name != "x" || whole[1].ObjectRef.Name != "xy" {
				t.Errorf("%+v", whole)
			}
		})
	}
}

// AU-04: the file may be moved, truncated or deleted while it is open.
func TestAU04FileRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if err := os.WriteFile(path, []byte("{\"half"), 0o600); err != nil { // of a process that stopped
		t.Fatal(err)
	}
	s := newEnv(t, apiproxy.AuditLogConfig{Path: path, Delay: time.Minute})
	written := func() { // a request that must be recorded waits until it is written
		t.Helper()
		if err := s.request(t, "POST", execPath); err != nil {
			t.Fatal(err)
		}
		s.waitSettled(t)
	}
	read := func(path string) string {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	written()
	if text := read(path); !strings.HasPrefix(text, "{\"half\n{") || len(auditLines(t, strings.TrimPrefix(text, "{\"half\n"))) != 2 {
		t.Errorf("%q", text)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	written()
	if len(auditLines(t, read(path))) != 2 || strings.Count(read(path+".1"), "\n") != 3 {
		t.Errorf("%q, before %q", read(path), read(path+".1"))
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	written()
	if len(auditLines(t, read(path))) != 2 {
		t.Errorf("cut: %q", read(path))
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	written()
	if len(auditLines(t, read(path))) != 2 {
		t.Errorf("deleted: %q", read(path))
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v %v", info.Mode(), err)
	}
	s.stop()
}

// waitSettled waits until no line is pending.
func (s *env) waitSettled(t *testing.T) {
	t.Helper()
	for began := time.Now(); s.telemetry.Stats().Waiting > 0; runtime.Gosched() {
		if time.Since(began) > time.Minute {
			t.Fatalf("%+v", s.telemetry.Stats())
		}
	}
}
