package attack

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

// A server is an access server beside the shared one, which a test may treat as it
// likes: another node, state and record.
type server struct {
	*testenv.Process
	s      *system
	dir    string
	name   string // in full, as control assigned it
	record string // the file
}

// A serverOptions says what is other than of the shared server.
type serverOptions struct {
	env     []string
	replace []string // in its settings: old and new, in turn
	args    []string
}

// server starts one and waits until it serves. The test's end stops it.
func (s *system) server(t *testing.T, name string, o serverOptions) *server {
	t.Helper()
	x := &server{s: s, dir: filepath.Join(s.Dir, name)}
	x.record = filepath.Join(x.dir, "audit.jsonl")
	if err := os.RemoveAll(x.dir); err != nil { // of a run of the test before
		t.Fatal(err)
	}
	x.start(t, name, o)
	return x
}

// start starts the server with its state and its record as they are; its log goes
// to the folder called as.
func (x *server) start(t *testing.T, as string, o serverOptions) {
	t.Helper()
	kubeconfig, text := x.settings(t, o)
	if err := os.RemoveAll(filepath.Join(x.s.Dir, as, "log")); err != nil { // what it says now counts
		t.Fatal(err)
	}
	p, err := x.s.Try(as, "access", o.env, text, append([]string{"--kubeconfig", kubeconfig}, o.args...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(long); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	for _, said := range []string{`"access is serving"`, `"the cluster's key is at hand"`} {
		if err := p.WaitLog(ctx, said); err != nil {
			t.Fatal(err)
		}
	}
	x.Process, x.name = p, servingNames(t, p)[0]
}

// settings prepares the server's folder.
func (x *server) settings(t *testing.T, o serverOptions) (kubeconfig, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(x.dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(x.dir, "authkey")
	if err := os.WriteFile(key, []byte(x.s.Net.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:tailplane"}})), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := x.s.Settings("access")
	if err != nil {
		t.Fatal(err)
	}
	if kubeconfig, err = x.s.Cluster.ServiceAccountKubeconfig(t.Context(), testenv.SystemNamespace, "tailplane-access", x.dir); err != nil {
		t.Fatal(err)
	}
	return kubeconfig, strings.NewReplacer(append([]string{filepath.Join(x.s.Dir, "access") + "/", x.dir + "/", x.s.AuthKeyFile(), key}, o.replace...)...).Replace(string(b))
}

// ask is system.ask at this server.
func (x *server) ask(t *testing.T, p *testenv.Person, method, path, body string, headers ...string) answer {
	t.Helper()
	req := x.s.newRequest(t, method, path, body, headers...)
	req.URL.Host, req.Host = x.name, x.name
	return do(t, x.s.http(p), req)
}

// key is the public key that signs the server's record, as its log says.
func (x *server) key(t *testing.T) string {
	t.Helper()
	all := regexp.MustCompile(`"the audit record is open","key":"(ed25519:[^"]+)"`).FindAllStringSubmatch(x.Output(), -1)
	if len(all) == 0 {
		t.Fatalf("the log names no key: %s", x.Output())
	}
	return all[len(all)-1][1]
}

// series are the samples of the metrics of a process, by name and labels.
func (s *system) series(t *testing.T, p *testenv.Process) map[string]float64 {
	t.Helper()
	a := rawProbe(t, s.probes(t, p), "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
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

// linesOf are the whole lines of a record that a server is writing.
func linesOf(t *testing.T, path string) (lines []audit.Line) {
	t.Helper()
	since(t, path, 0, func(text []byte) {
		l, err := audit.ParseLine(slices.Clone(text))
		if err != nil || !l.Sound() {
			t.Fatalf("record: %q: %v", text, err)
		}
		lines = append(lines, l)
	})
	return lines
}

// entriesOf are the entries of visits among lines.
func entriesOf(t *testing.T, lines []audit.Line) (out []audit.Entry) {
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
