package accessproxy

import (
	"log/slog"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/problem"
)

// PRX-13: routine reads of an interval are one entry for each caller and resource. Everything else has its own entry, and
// a flood of equal refusals is one more.
func TestPRX13_Sums(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := map[string]int{} // entries by caller, what they are about, and the requests that they cover
		p := &Proxy{Log: slog.New(slog.DiscardHandler), Now: time.Now, Record: func(e audit.Entry) error {
			got[e.Actor.Node+" "+e.Args["verb"]+" "+e.Args["resource"]+" "+string(e.Code)+" "+e.Args["requests"]]++
			return nil
		}}
		p.sums.init(p)
		send := func(device, path string, status, n int, code problem.Code) {
			for range n {
				r := httptest.NewRequest("GET", path, nil)
				x := newExchange(p, nil, r)
				x.caller = access.Caller{Login: "alice@example.com", Device: access.Device{ID: device, Name: device}}
				q, err := apiproxy.ParseRequest("GET", r.URL)
				if err != nil {
					t.Fatal(err)
				}
				if x.request, x.status = &q, status; code != "" {
					x.refused = &refusal{status: status, code: code, message: "No."}
				}
				x.end()
			}
		}
		for _, device := range []string{"laptop", "phone"} {
			send(device, "/api/v1/pods", 200, 5, "")
			send(device, "/api/v1/secrets", 200, 2, "")
			send(device, "/api/v1/namespaces/shop/pods/web", 200, 3, "")
			send(device, "/api/v1/pods", 403, 640, problem.NotSignedIn)
		}
		send("laptop", "/api/v1/pods", 403, 1, problem.NoCapability)
		p.sums.flush()
		send("laptop", "/api/v1/pods", 403, 2, problem.NotSignedIn) // in the next interval
		p.sums.flush()
		want := map[string]int{"laptop list pods no_capability ": 1}
		for _, device := range []string{"laptop", "phone"} {
			want[device+" list pods  5"] = 1
			want[device+" list secrets  "] = 2
			want[device+" get pods  "] = 3
			want[device+" list pods not_signed_in "] = 600
			want[device+" list pods not_signed_in 40"] = 1
		}
		want["laptop list pods not_signed_in "] = 602
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("entries (-want +got):\n%s", diff)
		}
	})
}
