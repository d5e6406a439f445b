package plane

import (
	"context"

	"github.com/tailplane/tailplane/internal/access"
)

// Exposure is a service of the cluster that the plane exposes on the tailnet.
type Exposure struct {
	Name    string       `json:"name" doc:"name in the settings"`
	Address *string      `json:"address" doc:"address with the name that the tailnet assigned; null: none now"`
	Access  string       `json:"access" enum:"observe.read,identified" doc:"who may use it: observe.read: callers that may read everything; identified: every person of the tailnet (the service checks further rights itself)"`
	Source  string       `json:"source" doc:"its entry in the list of sources"`
	State   SourceStatus `json:"state" enum:"ok,degraded,down"`
	Problem string       `json:"problem" doc:"a sentence; empty: nothing is wrong"`
}

// listExposures lists the exposed services with the health that their sources report.
func (d *Service) listExposures(context.Context, access.Permit, Empty) (Envelope[[]Exposure], error) {
	stands := map[string]Source{}
	for _, s := range d.Store.Sources() {
		stands[s.Name] = s
	}
	all, of := []Exposure{}, []Source{}
	for _, e := range d.Exposures() {
		s, found := stands[e.Source]
		if !found {
			s = Source{Name: e.Source, Status: StatusDown, Since: d.Now().UTC(), Message: "There is no report about it yet."}
		}
		if e.State, e.Problem = s.Status, s.Message; s.Status == StatusDown {
			e.Address = nil
		}
		all, of = append(all, e), append(of, s)
	}
	return newEnvelope(d, "ExposureList", all, d.Store.Revision(), of), nil
}
