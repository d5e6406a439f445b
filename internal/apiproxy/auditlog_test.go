package apiproxy_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

func TestConfig(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	dir := t.TempDir()
	for reason, c := range map[string]apiproxy.AuditLogConfig{
		"neither":     {Log: log, Now: time.Now},
		"both":        {Path: filepath.Join(dir, "x"), Writer: os.Stdout, Log: log, Now: time.Now},
		"no clock":    {Path: filepath.Join(dir, "x"), Log: log},
		"a directory": {Path: dir, Log: log, Now: time.Now},
		"no such":     {Path: filepath.Join(dir, "none", "x"), Log: log, Now: time.Now},
	} {
		if _, err := apiproxy.NewAuditLog(c); err == nil {
			t.Error(reason)
		}
	}
}

type recordWriter func([]byte) (int, error)

func (w recordWriter) Write(p []byte) (int, error) { return w(p) }

// TestEnd checks that pending lines are written at the end, and that an error reports the ones that cannot be
// written.
func TestEnd(t *testing.T) {
	for _, broken := range []error{nil, errors.New("no space")} {
		synctest.Test(t, func(t *testing.T) {
			var out strings.Builder
			r, err := apiproxy.NewAuditLog(apiproxy.AuditLogConfig{Log: slog.New(slog.DiscardHandler), Now: time.Now, Writer: recordWriter(func(p []byte) (int, error) {
				if broken != nil {
					return 0, broken
				}
				return out.Write(p)
			})})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			for range 3 {
				r.Write([]byte("{}\n"))
			}
			cancel()
			go func() { done <- r.Run(ctx) }()
			if err := <-done; !errors.Is(err, broken) || out.String() != strings.Repeat("{}\n", map[bool]int{true: 3}[broken == nil]) {
				t.Errorf("%v: ended with %v, %q", broken, err, out.String())
			}
			r.Write([]byte("late\n"))
			if err := r.Require([]byte("late\n")); err == nil {
				t.Error("a closed log accepts a line")
			}
			want := apiproxy.AuditLogStats{Written: 3, Lost: 2}
			if broken != nil {
				want = apiproxy.AuditLogStats{Lost: 5, Waiting: 3}
			}
			if s := r.Stats(); s != want {
				t.Errorf("%v: %+v, want %+v", broken, s, want)
			}
		})
	}
}

// TestRunEndsWithBlockedWriter checks that Run does not wait for a writer that never returns.
func TestRunEndsWithBlockedWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := make(chan struct{})
		r, err := apiproxy.NewAuditLog(apiproxy.AuditLogConfig{Log: slog.New(slog.DiscardHandler), Now: time.Now, Writer: recordWriter(func(p []byte) (int, error) { <-hang; return len(p), nil })})
		if err != nil {
			t.Fatal(err)
		}
		r.Write([]byte("{}\n"))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began := time.Now()
		if err := r.Run(ctx); err == nil || time.Since(began) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		close(hang)
	})
}
