package controller

import (
	"errors"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// After a refusal or a missing answer, the session checks a credential again soon, and then less
// and less often. After a success, the pauses start from the beginning.
func TestCheckAgain(t *testing.T) {
	refused := &forgetest.Fault{Status: http.StatusUnauthorized, Header: http.Header{"Content-Type": {"application/json"}}, Body: `{"message":"401 Unauthorized"}`}
	away := &forgetest.Fault{Status: http.StatusServiceUnavailable}
	later := &forgetest.Fault{Status: http.StatusServiceUnavailable, Header: http.Header{"Retry-After": {"30"}}}
	for _, c := range []struct {
		why     string
		answers []*forgetest.Fault // the first, second, … answer; nil: success; the last one repeats
		seconds int
		asked   []int // seconds of the requests
		at      map[int]fleet.Answer
	}{
		{"it is good", []*forgetest.Fault{nil}, 1300, []int{0, 600, 1200}, map[int]fleet.Answer{0: fleet.Yes, 1299: fleet.Yes}},
		{"it is refused", []*forgetest.Fault{refused}, 200, []int{0, 5, 15, 35, 75, 135, 195}, map[int]fleet.Answer{0: fleet.No, 199: fleet.No}},
		{"it flaps", []*forgetest.Fault{refused, refused, nil, refused, nil}, 700, []int{0, 5, 15, 615, 620}, map[int]fleet.Answer{14: fleet.No, 15: fleet.Yes, 615: fleet.No, 620: fleet.Yes}},
		{"the forge is away", []*forgetest.Fault{away, away, away, nil}, 200, []int{0, 5, 15, 35}, map[int]fleet.Answer{0: fleet.Unknown, 34: fleet.Unknown, 35: fleet.Yes}},
		{"it reports the time until it answers again", []*forgetest.Fault{later}, 140, []int{0, 30, 60, 90, 130}, map[int]fleet.Answer{139: fleet.Unknown}},
		{"it stops answering: a valid credential stays valid", []*forgetest.Fault{nil, away, away, nil}, 700, []int{0, 600, 605, 615}, map[int]fleet.Answer{600: fleet.Yes, 615: fleet.Yes}},
		{"it stops answering, and later refuses", []*forgetest.Fault{nil, away, refused}, 640, []int{0, 600, 605, 615, 635}, map[int]fleet.Answer{604: fleet.Yes, 605: fleet.No}},
	} {
		t.Run(c.why, func(t *testing.T) {
			lab := forgetest.NewGitLab(t)
			first := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
			now := first
			lab.Clock(func() time.Time { return now })
			credential := map[string][]byte{"access_token": []byte(lab.AddToken(forgetest.GitLabToken{Scopes: []string{"api"}}))}
			requests := 0
			lab.Fault(func(*http.Request) *forgetest.Fault {
				requests++
				return c.answers[min(requests, len(c.answers))-1]
			})
			all := newSessionCache(func() time.Time { return now }, nil)
			e := &v1alpha1.RunnerEnrollment{Spec: v1alpha1.RunnerEnrollmentSpec{ConfigURL: lab.URL + "/acme"}}
			f := &v1alpha1.RunnerForge{Spec: v1alpha1.RunnerForgeSpec{Type: v1alpha1.GitLab, URL: lab.URL}}
			var requested []int
			for s := range c.seconds {
				now = first.Add(time.Duration(s) * time.Second)
				a := all.get("acme", e, f, credential)
				before := requests
				a.check(t.Context(), now, false)
				if requests > before {
					requested = append(requested, s)
				}
				if want, ok := c.at[s]; ok && a.State.Valid != want {
					t.Errorf("after %d seconds: %+v, want %v", s, a.State, want)
				}
				if next := a.nextCheck(); !next.After(now) {
					t.Fatalf("after %d seconds it is to be checked again at %v", s, next.Sub(first))
				}
			}
			if !slices.Equal(requested, c.asked) {
				t.Errorf("queried at %v, want %v", requested, c.asked)
			}
			before := requests // another credential gets another session
			all.get("acme", e, f, map[string][]byte{"access_token": []byte(lab.AddToken(forgetest.GitLabToken{Scopes: []string{"api"}}))}).check(t.Context(), now, false)
			if requests != before+1 {
				t.Error("another credential is not checked immediately")
			}
		})
	}
}

// The end of a run is not requested again at once, and the last response is remembered.
func TestRequestEnd(t *testing.T) {
	a := &forgeSession{endRequests: map[int64]endRequest{}}
	no := errors.New("it may not")
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, c := range []struct {
		why   string
		after time.Duration
		id    int64
		says  error
		asked bool
		want  error
	}{
		{"the first time", 0, 1, no, true, no},
		{"a moment later", 29 * time.Second, 1, nil, false, no},
		{"another one", 29 * time.Second, 2, nil, true, nil},
		{"half a minute later", 30 * time.Second, 1, nil, true, nil},
		{"and then", 31 * time.Second, 1, no, false, nil},
		{"long after", 2 * time.Hour, 2, no, true, no},
	} {
		requested, err := a.requestEnd(c.id, now.Add(c.after), func() error { return c.says })
		if requested != c.asked || err != c.want {
			t.Errorf("%s: %v, %v", c.why, requested, err)
		}
	}
	if len(a.endRequests) != 1 {
		t.Errorf("%d are cached", len(a.endRequests))
	}
}

// FLEET-20: a changed enrollment does not wait behind reconciles of unchanged ones. The total
// number is limited for each forge separately.
func TestAcquire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := newSessionCache(time.Now, nil)
		enter := func(forge string, changed bool) (leave func(), took time.Duration, err error) {
			startedAt := time.Now()
			leave, err = all.acquire(t.Context(), forge, changed)
			return leave, time.Since(startedAt), err
		}
		var last func()
		for i := range maxPerForge + extraPerForge {
			changed := i >= maxPerForge
			if i == maxPerForge {
				if _, took, err := enter("github", false); !errors.Is(err, errForgeBusy) || took != acquireTimeout {
					t.Errorf("one more: %v, after %v", err, took)
				}
			}
			leave, took, err := enter("github", changed)
			if err != nil || took != 0 {
				t.Fatalf("number %d: %v, after %v", i, err, took)
			}
			last = leave
		}
		if _, took, err := enter("github", true); !errors.Is(err, errForgeBusy) || took != acquireTimeout {
			t.Errorf("more than the maximum: %v, after %v", err, took)
		}
		if _, took, err := enter("gitlab", false); err != nil || took != 0 {
			t.Errorf("another forge: %v, after %v", err, took)
		}
		time.AfterFunc(acquireTimeout/2, last)
		if _, took, err := enter("github", true); err != nil || took != acquireTimeout/2 {
			t.Errorf("when one leaves: %v, after %v", err, took)
		}
	})
}
