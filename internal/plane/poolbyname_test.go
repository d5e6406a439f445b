package plane

import (
	"net/http"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/problem"
)

// PLANE-10, PL-05: under the paths of the existing dashboard a pool is found by its id, or by a name that is unique among the visible
// pools. A caller that sees two receives both ids, and nothing is paused. A caller that sees one learns nothing of the other.
func TestPLANE10_ByName(t *testing.T) {
	o := newFleetEnv().as(alice())
	a := o.do(t, "GET", "/api/runners/gh-nix", "")
	if a.Status != http.StatusConflict || !strings.Contains(a.Text, "github/acme/gh-nix, github/globex/gh-nix") {
		t.Errorf("%s", a.Text)
	}
	have := o.names()
	for _, verb := range []string{"pause", "resume"} {
		if a := o.do(t, "POST", "/api/runners/gh-nix/"+verb, `{"reason":"test"}`); a.code() != problem.Conflict || len(o.names()) != len(have) {
			t.Errorf("%s: %s", verb, a.Text)
		}
	}
	for _, path := range []string{"/api/runners/gh-docker", "/api/runners/github/acme/gh-docker"} {
		if p := dataOf[Pool](t, o.do(t, "GET", path, "")); p.ID != "github/acme/gh-docker" {
			t.Errorf("%s: %+v", path, p)
		}
	}
	o.as(amy())
	if a := o.do(t, "GET", "/api/runners/gh-nix", ""); strings.Contains(a.Text, "globex") || dataOf[Pool](t, a).OrgName != "acme" {
		t.Errorf("%s", a.Text)
	}
	for _, name := range []string{"gl-docker", "nothing"} {
		if a := o.do(t, "GET", "/api/runners/"+name, ""); a.code() != problem.NotFound {
			t.Errorf("%s: %s", name, a.Text)
		}
	}
	// All three paths make the same hold, and lift it.
	made := map[string]bool{}
	for _, path := range []string{"/api/runners/gh-docker/pause", "/api/runners/github/acme/gh-docker/pause", "/api/v1/pools/github/acme/gh-docker/pause"} {
		made[dataOf[Created](t, o.do(t, "POST", path, `{"reason":"test","expiresIn":"2h"}`, "Idempotency-Key", "k")).Hold.Name] = true
	}
	if len(made) != 1 {
		t.Errorf("%v", made)
	}
	o.update()
	if l := dataOf[Lifted](t, o.do(t, "POST", "/api/runners/gh-docker/resume", `{"reason":"test"}`)); len(l.Lifted) != 1 || !made[l.Lifted[0]] {
		t.Errorf("%+v", l)
	}
	o.store = NewStore(o.service.Plane.Now)
	o.service.Plane.Store = o.store
	o.store.Expect("kubernetes", KindPool)
	if a := o.do(t, "GET", "/api/runners/gh-docker", ""); a.code() != problem.Unavailable {
		t.Errorf("%s", a.Text)
	}
}
