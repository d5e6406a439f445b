package planedrift

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/change"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planechange"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
)

// As long as nobody commits anything, a look reads one file, however many there are.
func TestFilesAreReadOnce(t *testing.T) {
	now, commit, reads := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC), "c1", 0
	live := map[change.Ref]map[string]any{}
	for i := range 5 {
		live[change.Ref{Kind: "RunnerPool", Name: fmt.Sprintf("p%d", i)}] = map[string]any{"forge": "github"}
	}
	c := &Check{Board: plane.NewBoard(func() time.Time { return now }), Now: func() time.Time { return now }, Pattern: "fleet/{name}.yaml", Every: time.Minute, Log: slog.New(slog.DiscardHandler),
		Read: func(_ context.Context, path string) (planechange.File, error) {
			reads++
			name := strings.TrimSuffix(strings.TrimPrefix(path, "fleet/"), ".yaml")
			return planechange.File{Commit: commit, Text: []byte("apiVersion: tailplane.dev/v1alpha1\nkind: RunnerPool\nmetadata: {name: " + name + "}\nspec: {forge: github}\n")}, nil
		},
		Live:  func(context.Context) (map[change.Ref]map[string]any, error) { return live, nil },
		Would: func(_ context.Context, _ change.Ref, spec map[string]any) (map[string]any, error) { return spec, nil }}
	for _, want := range []int{5, 1, 1} {
		reads = 0
		if err := c.Look(t.Context()); err != nil || reads != want {
			t.Errorf("%d reads, want %d: %v", reads, want, err)
		}
	}
	reads, commit = 0, "c2"
	if err := c.Look(t.Context()); err != nil || reads != 5 {
		t.Errorf("after a commit %d reads: %v", reads, err)
	}
	c.Live = func(context.Context) (map[change.Ref]map[string]any, error) { return nil, errors.New("away") }
	if err := c.Look(t.Context()); err == nil {
		t.Error("nobody knows what is live, and nothing is wrong")
	}
	if l := c.Board.List(plane.KindDrift); len(l.Objects) != 0 || l.Sources[0].Status != plane.Degraded {
		t.Errorf("%+v", l)
	}
}

// A look is asked for at any time, is had soon, and many who ask get one.
func TestLookAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		c := &Check{Board: plane.NewBoard(time.Now), Now: time.Now, Pattern: "fleet/{name}.yaml", Every: time.Hour, Again: make(chan struct{}, 1), Log: slog.New(slog.DiscardHandler),
			Live: func(context.Context) (map[change.Ref]map[string]any, error) { looks.Add(1); return nil, nil }}
		go c.Run(t.Context())
		at := func(want int64, why string) {
			t.Helper()
			if synctest.Wait(); looks.Load() != want {
				t.Errorf("%s: %d looks, want %d", why, looks.Load(), want)
			}
		}
		at(1, "at the start")
		c.LookAgain()
		c.LookAgain()
		at(1, "at once after a look")
		time.Sleep(leastRest)
		at(2, "a rest later")
		time.Sleep(time.Minute)
		at(2, "nobody asks")
		c.LookAgain()
		at(3, "after a rest")
		time.Sleep(time.Hour)
		at(4, "an hour later")
	})
}

func TestDifferences(t *testing.T) {
	want := map[string]any{"a": 1.0, "b": map[string]any{"c": "x", "d": []any{"1", "2"}}, "gone": true}
	have := map[string]any{"a": 1.0, "b": map[string]any{"c": "y", "d": []any{"2", "1"}}, "more": map[string]any{"e": 1.0}}
	got := differences("spec", want, have, nil)
	if !reflect.DeepEqual(got, []difference{{"spec.b.c", `"x"`, `"y"`}, {"spec.b.d", `["1","2"]`, `["2","1"]`}, {"spec.gone", "true", "null"}, {"spec.more", "null", `{"e":1}`}}) {
		t.Errorf("%q", got)
	}
	if got := differences("spec", want, want, nil); len(got) != 0 {
		t.Errorf("%q", got)
	}
	if s := shown(strings.Repeat("x", 1000)); len(s) > maxValue+4 {
		t.Errorf("%d bytes", len(s))
	}
	if d := finding(change.Ref{Kind: "RunnerEnrollment", Name: "acme"}, "spec.quota", nil, nil, "", ""); d.Org() != "acme" || d.Kind != planefleet.DriftGit || d.ID == finding(change.Ref{Kind: "RunnerEnrollment", Name: "acme"}, "spec.pools", nil, nil, "", "").ID {
		t.Errorf("%+v", d)
	}
}
