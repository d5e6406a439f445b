package cli_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/cli"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/safefile"
)

// raceOptions let a program that was built with the race detector exit at once. By default it waits for one second at exit, and the tests
// run tka hundreds of times.
const raceOptions = "atexit_sleep_ms=0"

// TestMain makes the test binary run as tka when its name is tka.
func TestMain(m *testing.M) {
	run := func() {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
		defer stop()
		os.Exit(cli.Program{Args: os.Args, In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Getenv: os.Getenv, Now: time.Now,
			Build: cli.ReadBuild(cli.Build{Version: "v0.0.0-test", Commit: "abc", Date: "2026-01-02T03:04:05Z"})}.Run(ctx))
	}
	testscript.Main(m, map[string]func(){"tka": run, "kubectl-tka": run, "kubectl_complete-tka": run, "stage-and-wait": stageAndWait})
}

// SGN-18, SGN-19 and the rows CL: the scripts are the tests. Each runs the program as people do.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			home := filepath.Join(env.WorkDir, "home")
			env.Setenv("HOME", home)
			env.Setenv("XDG_CONFIG_HOME", filepath.Join(home, "config"))
			env.Setenv("XDG_STATE_HOME", filepath.Join(home, "state"))
			env.Setenv("TERM", "xterm")
			env.Setenv("GORACE", raceOptions)
			env.Values[serversKey{}] = map[string]*accessServer{}
			return os.MkdirAll(home, 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"server": cmdAccessServer, "hostile": cmdHostile, "requests": cmdRequests, "exits": cmdExits, "mode": cmdMode, "parses": cmdParses, "same": cmdSame,
			"field": cmdField, "notoken": cmdNoToken, "link": cmdSymlink, "foreign": cmdForeign, "down": cmdDown, "refusing": cmdRefusing,
			"knows": cmdKnows, "offers": cmdOffers,
		},
	})
}

type serversKey struct{}

// server NAME [key=value…] starts an access server at $NAME and makes it the server of the settings. Keys: cluster, ready, grant
// (repeatable: role/period/priority/namespaces), allow (repeatable: a role), lacks (repeatable: a verb), max, refuse, modes, tls.
func cmdAccessServer(ts *testscript.TestScript, neg bool, args []string) {
	name, opts := args[0], args[1:]
	d := &accessServer{store: newSigninStore(0), cluster: "prod-eu"}
	secure, granted := false, false
	for _, o := range opts {
		key, value, _ := strings.Cut(o, "=")
		switch key {
		case "cluster":
			d.cluster = value
		case "ready":
			d.store.ready = -1
			if value != "never" {
				ready, err := time.ParseDuration(value)
				ts.Check(err)
				d.store.ready = ready
			}
		case "grant":
			granted = true
			if value != "" {
				d.rules = append(d.rules, grantRule(value))
			}
		case "max":
			longest, err := time.ParseDuration(value)
			ts.Check(err)
			d.period = longest
		case "allow":
			d.allowed = append(d.allowed, access.Role(value))
		case "lacks":
			d.lacks = append(d.lacks, access.Verb(value))
		case "refuse":
			d.store.fails = value
		case "modes":
			d.setModes(value)
		case "tls":
			secure = true
		default:
			ts.Fatalf("server: unknown key %q", key)
		}
	}
	if !granted {
		d.rules = []string{grantRule("view/8h")}
	}
	d.start()
	servers := ts.Value(serversKey{}).(map[string]*accessServer)
	servers[name] = d
	srv := httptest.NewUnstartedServer(d)
	if secure {
		der, key, err := certificate("main", "main.example.ts.net")
		ts.Check(err)
		srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
		ca := ts.MkAbs(name + ".pem")
		ts.Check(os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
		srv.StartTLS()
	} else {
		srv.Start()
	}
	ts.Defer(srv.Close)
	d.stop = srv.Close
	useServer(ts, name, srv.URL)
}

// useServer makes a server known to the script and to the settings.
func useServer(ts *testscript.TestScript, name, url string) {
	ts.Setenv(name, url)
	path := filepath.Join(ts.Getenv("XDG_CONFIG_HOME"), "tka", "config.yaml")
	old, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		old = []byte("server: " + name + "\nservers:\n")
		ts.Check(os.MkdirAll(filepath.Dir(path), 0o700))
	} else {
		ts.Check(err)
	}
	ts.Check(os.WriteFile(path, fmt.Appendf(old, "- {name: %s, url: %q, insecureHTTP: %v}\n", name, url, strings.HasPrefix(url, "http://")), 0o600))
}

func grantRule(s string) string {
	parts := strings.Split(s, "/")
	r := map[string]any{"role": parts[0], "period": parts[1]}
	if len(parts) > 2 && parts[2] != "" {
		p, _ := strconv.Atoi(parts[2])
		r["priority"] = p
	}
	if len(parts) > 3 {
		r["namespaces"] = strings.Split(parts[3], ",")
	}
	b, _ := json.Marshal(r)
	return string(b)
}

// knows NAME [OTHER[,key=value…]…] makes a server know others as verified and alive, or as given: state, cluster, id, url, key (of a word),
// labels (k:v+k:v), unverified, conflict.
func cmdKnows(ts *testscript.TestScript, neg bool, args []string) {
	servers := ts.Value(serversKey{}).(map[string]*accessServer)
	var list []gossip.Member
	for _, a := range args[1:] {
		words := strings.Split(a, ",")
		m := member(servers[words[0]], ts.Getenv(words[0]))
		for _, w := range words[1:] {
			key, value, _ := strings.Cut(w, "=")
			switch key {
			case "state":
				m.State = gossip.State(value)
			case "cluster":
				m.ClusterName = value
			case "id":
				m.ClusterID = value
			case "url":
				m.URL = value
			case "key":
				m.Key = keyFor(value).Public()
			case "labels":
				m.Labels = map[string]string{}
				for pair := range strings.SplitSeq(value, "+") {
					k, v, _ := strings.Cut(pair, ":")
					m.Labels[k] = v
				}
			case "unverified":
				m.Verified = false
			case "conflict":
				m.Conflict = true
			default:
				ts.Fatalf("knows: unknown key %q", key)
			}
		}
		list = append(list, m)
	}
	servers[args[0]].addCluster(ts.Getenv(args[0]), list...)
}

// down NAME stops a server.
func cmdDown(ts *testscript.TestScript, neg bool, args []string) {
	ts.Value(serversKey{}).(map[string]*accessServer)[args[0]].stop()
}

// offers NAME MODE,… changes the modes that a server's cluster offers.
func cmdOffers(ts *testscript.TestScript, neg bool, args []string) {
	d := ts.Value(serversKey{}).(map[string]*accessServer)[args[0]]
	d.mu.Lock()
	defer d.mu.Unlock()
	d.setModes(args[1])
	d.start()
}

// setModes makes the cluster offer modes, and a proxy that does not answer.
func (d *accessServer) setModes(list string) {
	d.modes = nil
	for m := range strings.SplitSeq(list, ",") {
		d.modes = append(d.modes, signin.Mode(m))
	}
	d.proxies = []signin.ProxyServer{{URL: "https://" + d.cluster + "-api.example.ts.net"}}
}

// refusing NAME removes the grants of a server's caller.
func cmdRefusing(ts *testscript.TestScript, neg bool, args []string) {
	d := ts.Value(serversKey{}).(map[string]*accessServer)[args[0]]
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rules = nil
	d.start()
}

// requests NAME TEXT… checks the requests to a server, in order, since the last requests command.
func cmdRequests(ts *testscript.TestScript, neg bool, args []string) {
	d := ts.Value(serversKey{}).(map[string]*accessServer)[args[0]]
	got := d.received()
	d.mu.Lock()
	d.requests = nil
	d.mu.Unlock()
	if want := args[1:]; !slices.Equal(got, want) {
		ts.Fatalf("requests of %s:\n%s\nwant:\n%s", args[0], strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// exits CODE PROGRAM ARG… runs a program and checks its exit code.
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		ee, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = ee.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
	for _, out := range []string{ts.ReadFile("stderr"), ts.ReadFile("stdout")} {
		if strings.Contains(out, "goroutine ") || strings.Contains(out, "panic:") {
			ts.Fatalf("a stack trace:\n%s", out)
		}
	}
}

// mode PERM FILE… checks the permissions of files.
func cmdMode(ts *testscript.TestScript, neg bool, args []string) {
	for _, f := range args[1:] {
		st, err := os.Lstat(ts.MkAbs(f))
		ts.Check(err)
		if got := fmt.Sprintf("%04o", st.Mode().Perm()); got != args[0] {
			ts.Fatalf("%s has mode %s, want %s", f, got, args[0])
		}
	}
}

// parses json|yaml FILE checks that a file, or stdout, is well formed and has an apiVersion and a kind.
func cmdParses(ts *testscript.TestScript, neg bool, args []string) {
	v := decode(ts, args[0], ts.ReadFile(args[1]))
	m, ok := v.(map[string]any)
	if !ok {
		ts.Fatalf("%s is no object: %v", args[1], v)
	}
	for _, field := range []string{"apiVersion", "kind"} {
		if m[field] == nil {
			ts.Fatalf("%s has no %s: %v", args[1], field, v)
		}
	}
}

func decode(ts *testscript.TestScript, format, text string) any {
	var v any
	var err error
	switch format {
	case "json":
		err = json.Unmarshal([]byte(text), &v)
	case "yaml":
		err = yaml.Unmarshal([]byte(text), &v)
	default:
		ts.Fatalf("unknown form %q", format)
	}
	ts.Check(err)
	return v
}

// field FILE PATH VALUE checks one value of a JSON or YAML file. The path consists of keys, indexes and name=NAME, separated by "/".
func cmdField(ts *testscript.TestScript, neg bool, args []string) {
	v := decode(ts, "yaml", ts.ReadFile(args[0])) // JSON is YAML
	for step := range strings.SplitSeq(args[1], "/") {
		switch at := v.(type) {
		case map[string]any:
			v = at[step]
		case []any:
			i, err := strconv.Atoi(step)
			if name, ok := strings.CutPrefix(step, "name="); ok {
				i, err = slices.IndexFunc(at, func(e any) bool { m, ok := e.(map[string]any); return ok && m["name"] == name }), nil
			}
			if err != nil || i < 0 || i >= len(at) {
				v = nil
			} else {
				v = at[i]
			}
		default:
			v = nil
		}
	}
	want := "<none>"
	if len(args) > 2 {
		want = args[2]
	}
	got := "<none>"
	if v != nil {
		got = fmt.Sprint(v)
	}
	if (got == want) == neg {
		ts.Fatalf("%s in %s is %s, want %s (negated: %v)", args[1], args[0], got, want, neg)
	}
}

// same FILE FILE compares two files byte for byte.
func cmdSame(ts *testscript.TestScript, neg bool, args []string) {
	a, b := ts.ReadFile(args[0]), ts.ReadFile(args[1])
	if (a == b) == neg {
		ts.Fatalf("%s and %s: same is %v\n--- %s\n%s\n--- %s\n%s", args[0], args[1], a == b, args[0], a, args[1], b)
	}
}

// notoken checks that no file below the working directory holds a token.
func cmdNoToken(ts *testscript.TestScript, neg bool, args []string) {
	ts.Check(filepath.WalkDir(ts.MkAbs("."), func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(b), canary) {
			return fmt.Errorf("%s holds a token", path)
		}
		return err
	}))
}

// link TARGET NAME creates a symbolic link.
func cmdSymlink(ts *testscript.TestScript, neg bool, args []string) {
	ts.Check(os.Symlink(args[0], ts.MkAbs(args[1])))
}

// foreign FILE gives a file to another user, or skips.
func cmdForeign(ts *testscript.TestScript, neg bool, args []string) {
	if err := os.Chown(ts.MkAbs(args[0]), 65534, 65534); err != nil {
		ts.Fatalf("%v", err)
	}
}

// stageAndWait writes the file in os.Args[1] as tka does, with the content of standard input, and stops before it puts the file in its place.
func stageAndWait() {
	text, err := io.ReadAll(os.Stdin)
	if err == nil {
		_, err = safefile.Stage(os.Args[1], text)
	}
	fmt.Println(err)
	select {} // until it is killed
}
