package otlp_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	logs "go.opentelemetry.io/proto/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/audit/otlp"
)

// A collector is a server that accepts OTLP exports.
type collector struct {
	*httptest.Server
	mu       sync.Mutex
	got      []*logs.ExportLogsServiceRequest
	headers  []http.Header
	hang     chan struct{} // requests wait for it; nil: they do not wait
	problems []string
}

func newCollector(t *testing.T) *collector {
	c := &collector{}
	c.Server = httptest.NewServer(c)
	t.Cleanup(c.Close)
	return c
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	hang := c.hang
	c.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-r.Context().Done():
			return
		}
	}
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(body)
		if err != nil {
			c.problem("%v", err)
			return
		}
		body = z
	}
	b, err := io.ReadAll(body)
	req := new(logs.ExportLogsServiceRequest)
	if err == nil {
		err = proto.Unmarshal(b, req)
	}
	if err != nil || r.URL.Path != "/v1/logs" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		c.problem("%s %v %v", r.URL.Path, r.Header, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got, c.headers = append(c.got, req), append(c.headers, r.Header)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func (c *collector) problem(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problems = append(c.problems, fmt.Sprintf(format, args...))
}

// clean removes all OpenTelemetry variables from the environment except those in env.
func clean(t *testing.T, env map[string]string) {
	for _, kv := range os.Environ() {
		if name, _, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "OTEL_") {
			t.Setenv(name, "")
		}
	}
	for k, v := range env {
		t.Setenv(k, v)
	}
}

func conf(log io.Writer) otlp.Config {
	return otlp.Config{Service: "tailplaned", Version: "v1", Cluster: "prod-eu", Getenv: os.Getenv, Log: slog.New(slog.NewTextHandler(log, nil))}
}

func record(t *testing.T, e *otlp.Exporter) (*audit.Log, string) {
	t.Helper()
	c := audit.Config{Path: filepath.Join(t.TempDir(), "audit.jsonl"), Cluster: "prod-eu", Role: "access", Key: audit.GenerateKey(),
		Delay: 30 * time.Second, CloseTime: 30 * time.Second, Export: e.Export, Log: slog.New(slog.DiscardHandler), Now: time.Now}
	l, err := audit.Open(c)
	if err != nil {
		t.Fatal(err)
	}
	return l, c.Path
}

func attributes(kvs []*common.KeyValue) map[string]string {
	m := map[string]string{}
	for _, kv := range kvs {
		if s, ok := kv.Value.Value.(*common.AnyValue_StringValue); ok {
			m[kv.Key] = s.StringValue
		} else {
			m[kv.Key] = fmt.Sprint(kv.Value.GetIntValue())
		}
	}
	return m
}

// The collector receives every line unchanged, so that its data can be verified, with attributes
// for searches.
func TestLinesArriveWhole(t *testing.T) {
	c := newCollector(t)
	clean(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": c.URL, "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=team1",
		"OTEL_EXPORTER_OTLP_COMPRESSION": "gzip", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test"})
	e, err := otlp.New(t.Context(), conf(io.Discard))
	if err != nil || e == nil {
		t.Fatal(e, err)
	}
	l, path := record(t, e)
	day := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, entry := range []audit.Entry{
		{Time: day, RequestID: "R1", Actor: audit.Actor{Login: "alice@example.com", Node: "alice-laptop"}, Surface: "http", Verb: "signin.login", Object: "tka-1", Result: audit.Done},
		{Time: day, RequestID: "R2", Actor: audit.Actor{Login: "bob\x1b[31m\u202e"}, Verb: "signin.login", Result: audit.Refused, Code: "no_capability"},
	} {
		if err := l.Write(entry); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	if err := e.Close(ctx); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got bytes.Buffer
	byID := map[string]map[string]string{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, req := range c.got {
		if c.headers[i].Get("X-Tenant") != "team1" {
			t.Errorf("headers %v", c.headers[i])
		}
		for _, rl := range req.ResourceLogs {
			who := attributes(rl.Resource.Attributes)
			switch {
			case who["service.name"] != "tailplaned":
				t.Errorf(`resource: who["service.name"] = %q, want %q`, who["service.name"], "tailplaned")
			case who["k8s.cluster.name"] != "prod-eu":
				t.Errorf(`resource: who["k8s.cluster.name"] = %q, want %q`, who["k8s.cluster.name"], "prod-eu")
			case who["deployment.environment.name"] != "test":
				t.Errorf(`resource: who["deployment.environment.name"] = %q, want %q`, who["deployment.environment.name"], "test")
			}
			for _, sl := range rl.ScopeLogs {
				for _, r := range sl.LogRecords {
					got.WriteString(r.Body.GetStringValue() + "\n")
					a := attributes(r.Attributes)
					a["severity"], a["event"], a["time"] = r.SeverityNumber.String(), r.EventName, time.Unix(0, int64(r.TimeUnixNano)).UTC().Format(time.RFC3339)
					byID[a["log.record.uid"]] = a
				}
			}
		}
	}
	if len(c.problems) > 0 || got.String() != string(want) {
		t.Fatalf("%v\ngot\n%s\nwant\n%s", c.problems, got.String(), want)
	}
	switch a := byID["R1"]; {
	case a["user.name"] != "alice@example.com":
		t.Errorf(`a["user.name"] = %q, want %q`, a["user.name"], "alice@example.com")
	case a["tailplane.verb"] != "signin.login":
		t.Errorf(`a["tailplane.verb"] = %q, want %q`, a["tailplane.verb"], "signin.login")
	case a["tailplane.audit.seq"] != "2":
		t.Errorf(`a["tailplane.audit.seq"] = %q, want %q`, a["tailplane.audit.seq"], "2")
	case a["severity"] != "SEVERITY_NUMBER_INFO":
		t.Errorf(`a["severity"] = %q, want %q`, a["severity"], "SEVERITY_NUMBER_INFO")
	case a["event"] != "tailplane.audit.entry":
		t.Errorf(`a["event"] = %q, want %q`, a["event"], "tailplane.audit.entry")
	case a["time"] != day.Format(time.RFC3339):
		t.Errorf(`a["time"] = %q, want day.Format(time.RFC3339)`, a["time"])
	case len(a["tailplane.audit.hash"]) != 64:
		t.Errorf(`len(a["tailplane.audit.hash"]) = %v, want 64`, len(a["tailplane.audit.hash"]))
	}
	if a := byID["R2"]; a["severity"] != "SEVERITY_NUMBER_WARN" || a["error.type"] != "no_capability" {
		t.Errorf("%v", a)
	}
	// The data of the collector is a valid audit log.
	switch r, err := audit.Verify(audit.Check{Heads: []audit.Head{l.Head()}}, audit.Source{Name: "collector", Reader: &got}); {
	case err != nil:
		t.Error(err)
	case !r.OK():
		t.Errorf("r.OK() is false; %+v, %v", r, err)
	case !r.Closed:
		t.Errorf("r.Closed is false; %+v, %v", r, err)
	}
	switch s := e.Stats(); {
	case s.Received != 4:
		t.Errorf("s.Received = %v, want 4", s.Received)
	case s.Sent != 4:
		t.Errorf("s.Sent = %v, want 4", s.Sent)
	case s.Failed != 0:
		t.Errorf("s.Failed = %v, want 0", s.Failed)
	}
}

// AU-04: A collector that hangs or is unreachable delays no request. The failure is logged once.
func TestACollectorHoldsUpNothing(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := "http://" + free.Addr().String()
	free.Close()
	hanging := newCollector(t)
	hanging.hang = make(chan struct{})
	defer close(hanging.hang)
	for why, url := range map[string]string{"gone": gone, "hangs": hanging.URL} {
		t.Run(why, func(t *testing.T) {
			clean(t, map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BLRP_EXPORT_TIMEOUT": "200", "OTEL_BLRP_SCHEDULE_DELAY": "10",
				"OTEL_BLRP_MAX_QUEUE_SIZE": "100", "OTEL_BLRP_MAX_EXPORT_BATCH_SIZE": "50"})
			var log bytes.Buffer
			e, err := otlp.New(t.Context(), conf(&log))
			if err != nil || e == nil {
				t.Fatal(e, err)
			}
			l, path := record(t, e)
			const n = 2000
			began := time.Now()
			for i := range n {
				if err := l.Write(audit.Entry{RequestID: fmt.Sprint(i), Result: audit.Done}); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(began); took > 2*time.Minute {
				t.Errorf("%d visits took %v", n, took)
			}
			for deadline := time.Now().Add(2 * time.Minute); e.Stats().Failed < 100; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("no trouble: %+v", e.Stats())
				}
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			began = time.Now()
			e.Close(ctx)
			if took := time.Since(began); took > 2*time.Minute {
				t.Errorf("the end took %v", took)
			}
			if got := strings.Count(log.String(), "exporting the audit log to the collector fails"); got != 1 {
				t.Errorf("reported %d times:\n%s", got, log.String())
			}
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			switch r, err := audit.Verify(audit.Check{}, audit.Source{Name: path, Reader: f}); {
			case err != nil:
				t.Error(err)
			case !r.OK():
				t.Errorf("r.OK() is false; %+v, %v", r, err)
			case r.Entries != n:
				t.Errorf("r.Entries = %v, want %v", r.Entries, n)
			}
		})
	}
}

func TestOffByDefault(t *testing.T) {
	for _, tt := range []struct {
		why string
		env map[string]string
		on  bool
		bad bool
	}{
		{why: "nothing is set"},
		{why: "a collector", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, on: true},
		{why: "a collector of logs", env: map[string]string{"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": "http://127.0.0.1:1/v1/logs"}, on: true},
		{why: "requested, with the default collector", env: map[string]string{"OTEL_LOGS_EXPORTER": "otlp"}, on: true},
		{why: "no logs", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_LOGS_EXPORTER": "none"}},
		{why: "nothing at all", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_SDK_DISABLED": "true"}},
		{why: "another exporter", env: map[string]string{"OTEL_LOGS_EXPORTER": "console"}, bad: true},
		{why: "another protocol", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, bad: true},
		{why: "another protocol for logs only", env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "http/protobuf"}, on: true},
	} {
		clean(t, nil)
		c := conf(io.Discard)
		c.Getenv = func(name string) string { return tt.env[name] }
		e, err := otlp.New(t.Context(), c)
		if (err != nil) != tt.bad || (e != nil) != tt.on {
			t.Errorf("%s: %v, %v", tt.why, e, err)
		}
		if e != nil {
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			if err := e.Close(ctx); err != nil {
				t.Errorf("%s: %v", tt.why, err)
			}
			cancel()
		}
	}
}
