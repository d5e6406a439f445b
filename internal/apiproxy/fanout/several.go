package fanout

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"sync"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/rewrite"
	"github.com/tailplane/tailplane/internal/apiproxy/serving"
	"github.com/tailplane/tailplane/internal/apiproxy/shelter"
	"github.com/tailplane/tailplane/internal/apiproxy/upstream"
)

// reply is a member's complete response to a request that went to several members.
type reply struct {
	cluster string
	code    int
	header  http.Header
	body    []byte
	err     error
}

// maxReply limits the size of a buffered response in bytes.
const maxReply = 8 << 20

// toAll sends the request to all members concurrently.
func (v *Visit) toAll(members []apiproxy.Member) []reply {
	replies := make([]reply, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() { replies[i] = v.to(m.Cluster) })
	}
	wg.Wait()
	return replies
}

func (v *Visit) to(cluster string) reply {
	r := reply{cluster: cluster}
	out := v.Out.WithContext(v.Out.Context())
	out.Header = v.Out.Header.Clone()
	out.Header["Accept"] = []string{"application/json"}
	out.Header["Accept-Encoding"] = []string{"identity"}
	if v.body != nil {
		out.Body = io.NopCloser(bytes.NewReader(v.body))
	}
	answer, err := v.call.Do(v.view.Cluster(cluster), upstream.Ask{Request: out})
	if err != nil {
		r.err = err
		return r
	}
	defer answer.Close()
	r.code, r.header = answer.StatusCode, answer.Header
	if r.body, err = io.ReadAll(io.LimitReader(answer.Body, maxReply)); err != nil {
		r.err = err
	}
	return r
}

// relay writes a member's response to the client.
func (r *reply) relay(w http.ResponseWriter, cluster string) error {
	if r.err != nil {
		return unavailable("cluster %s did not answer: %v", r.cluster, r.err)
	}
	h := w.Header()
	for _, name := range []string{"Content-Type", "Retry-After", "Audit-Id", "Warning"} {
		h[name] = append(h[name], r.header[name]...)
	}
	h.Set(clusterHeader, cluster)
	w.WriteHeader(r.code)
	w.Write(r.body)
	return nil
}

// review sends an access review to all members. It allows the request only if all members allow it.
func (v *Visit) review(w http.ResponseWriter, _ *http.Request, call serving.Calling) error {
	v.call = call
	replies := v.toAll(v.Decision.Members)
	for i := range replies {
		r := &replies[i]
		if r.err != nil || r.code/100 != 2 {
			return r.relay(w, r.cluster)
		}
	}
	for i := range replies {
		var answer struct {
			Status struct {
				Allowed bool `json:"allowed"`
			} `json:"status"`
		}
		if err := json.Unmarshal(replies[i].body, &answer); err != nil {
			return unavailable("cluster %s answered a review with something else", replies[i].cluster)
		}
		if !answer.Status.Allowed {
			return replies[i].relay(w, merged)
		}
	}
	return replies[0].relay(w, merged)
}

// denyReview answers an access review of a request that a rule refuses: not allowed, with the reason.
func (v *Visit) denyReview(w http.ResponseWriter, _ *http.Request, _ serving.Calling) error {
	body := map[string]any{
		"apiVersion": v.Request.Group + "/" + v.Request.Version, "kind": v.object.Kind,
		"status": map[string]any{"allowed": false, "denied": true, "reason": "mca: " + v.Decision.Refusal.Message},
	}
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set(clusterHeader, merged)
	w.WriteHeader(http.StatusCreated)
	w.Write(b)
	return nil
}

// deleteAll deletes a collection at the members one after the other, if the rule permits it. It stops at the
// first failure and returns it. Earlier deletions are not undone.
func (v *Visit) deleteAll(w http.ResponseWriter, _ *http.Request, call serving.Calling) error {
	v.call = call
	if v.Out.Body != nil {
		b, err := io.ReadAll(io.LimitReader(v.Out.Body, apiproxy.MaxBody))
		if err != nil {
			return err
		}
		v.send(b)
	}
	var last reply
	for _, m := range v.Decision.Members {
		if last = v.to(m.Cluster); last.err != nil || last.code/100 != 2 {
			return last.relay(w, last.cluster)
		}
	}
	if v.sheltered() {
		last.body = rewrite.Answer(last.body, shelter.Read)
	}
	return last.relay(w, merged)
}
