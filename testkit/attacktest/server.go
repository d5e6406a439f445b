package attacktest

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// Server is a second access server for one test, which may do anything with it. It has its own node, state and audit
// log.
type Server struct {
	*testenv.Process
	SystemEnv *Env
	Dir       string
	Name      string // full name, as the control server assigned it
	Record    string // path of the audit log
}

// ServerOptions are the differences from the shared server.
type ServerOptions struct {
	Env     []string
	Replace []string // replacements in its settings: pairs of old and new text
	Args    []string
}

// StartServer starts a server and waits until it serves. It stops at the end of the test.
func (s *Env) StartServer(t *testing.T, name string, o ServerOptions) *Server {
	t.Helper()
	x := &Server{SystemEnv: s, Dir: filepath.Join(s.Dir, name)}
	x.Record = filepath.Join(x.Dir, "audit.jsonl")
	if err := os.RemoveAll(x.Dir); err != nil { // left by an earlier run of the test
		t.Fatal(err)
	}
	x.Restart(t, name, o)
	return x
}

// Restart starts the server again with its state and its audit log. Its log goes to the directory as.
func (x *Server) Restart(t *testing.T, as string, o ServerOptions) {
	t.Helper()
	kubeconfig, text := x.WriteSettings(t, o)
	if err := os.RemoveAll(filepath.Join(x.SystemEnv.Dir, as, "log")); err != nil { // only new log lines count
		t.Fatal(err)
	}
	p, err := x.SystemEnv.Try(as, "access", o.Env, text, append([]string{"--kubeconfig", kubeconfig}, o.Args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(Long); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), Long)
	defer cancel()
	for _, said := range []string{`"access is serving"`, `"the cluster's key is loaded"`} {
		if err := p.WaitLog(ctx, said); err != nil {
			t.Fatal(err)
		}
	}
	x.Process, x.Name = p, ServingNames(t, p)[0]
}

// WriteSettings writes the files in the server's directory.
func (x *Server) WriteSettings(t *testing.T, o ServerOptions) (kubeconfig, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(x.Dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(x.Dir, "authkey")
	if err := os.WriteFile(key, []byte(x.SystemEnv.Net.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:tailplane"}})), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := x.SystemEnv.Settings("access")
	if err != nil {
		t.Fatal(err)
	}
	if kubeconfig, err = x.SystemEnv.Cluster.ServiceAccountKubeconfig(t.Context(), testenv.SystemNamespace, "tailplane-access", x.Dir); err != nil {
		t.Fatal(err)
	}
	return kubeconfig, strings.NewReplacer(append([]string{filepath.Join(x.SystemEnv.Dir, "access") + "/", x.Dir + "/", x.SystemEnv.AuthKeyFile(), key}, o.Replace...)...).Replace(string(b))
}

// Ask sends a request to this server, as Env.Ask does to the shared one.
func (x *Server) Ask(t *testing.T, p *testenv.Person, method, path, body string, headers ...string) Answer {
	t.Helper()
	req := x.SystemEnv.NewRequest(t, method, path, body, headers...)
	req.URL.Host, req.Host = x.Name, x.Name
	return Do(t, x.SystemEnv.HTTPClient(p), req)
}

// AuditKey returns the public key of the server's audit log, which the server's log contains.
func (x *Server) AuditKey(t *testing.T) string {
	t.Helper()
	all := regexp.MustCompile(`"the audit log is open","key":"(ed25519:[^"]+)"`).FindAllStringSubmatch(x.Output(), -1)
	if len(all) == 0 {
		t.Fatalf("the log has no key: %s", x.Output())
	}
	return all[len(all)-1][1]
}

// Samples returns the metric samples of a process, by name and labels.
func (s *Env) Samples(t *testing.T, p *testenv.Process) map[string]float64 {
	t.Helper()
	a := RawProbe(t, s.ProbeAddress(t, p), "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	if a.Status != 200 {
		t.Fatalf("metrics: %v", a)
	}
	out := map[string]float64{}
	for line := range strings.Lines(a.Body) {
		line = strings.TrimSpace(line)
		if i := strings.LastIndexByte(line, ' '); i > 0 && line[0] != '#' {
			v, err := strconv.ParseFloat(line[i+1:], 64)
			if err != nil {
				t.Fatalf("%q: %v", line, err)
			}
			out[line[:i]] = v
		}
	}
	return out
}

// LinesOf returns the complete lines of an audit log that a server is writing.
func LinesOf(t *testing.T, path string) (lines []audit.Line) {
	t.Helper()
	ReadSince(t, path, 0, func(text []byte) {
		l, err := audit.ParseLine(slices.Clone(text))
		if err != nil || !l.Sound() {
			t.Fatalf("audit log: %q: %v", text, err)
		}
		lines = append(lines, l)
	})
	return lines
}

// EntriesOf returns the entries about requests in lines.
func EntriesOf(t *testing.T, lines []audit.Line) (out []audit.Entry) {
	t.Helper()
	for _, l := range lines {
		content, err := l.Content()
		if err != nil {
			t.Fatalf("%s: %v", l.Text, err)
		}
		if e, ok := content.(audit.Entry); ok && e.Surface != "process" {
			out = append(out, e)
		}
	}
	return out
}
