package multicluster

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"sync"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// memberReply is a member's complete response to a request that went to several members.
type memberReply struct {
	cluster string
	code    int
	header  http.Header
	body    []byte
	err     error
}

// maxReply limits the size of a buffered response in bytes.
const maxReply = 8 << 20

// inParallel calls f for all items concurrently and returns the results in the same order.
func inParallel[T, R any](items []T, f func(T) R) []R {
	results := make([]R, len(items))
	var wg sync.WaitGroup
	for i, item := range items {
		wg.Go(func() { results[i] = f(item) })
	}
	wg.Wait()
	return results
}

func (v *request) sendTo(m Member) memberReply {
	out := v.Out.WithContext(v.Out.Context())
	out.Header = v.Out.Header.Clone()
	out.Header["Accept"] = []string{"application/json"}
	out.Header["Accept-Encoding"] = []string{"identity"}
	if v.body != nil {
		out.Body = io.NopCloser(bytes.NewReader(v.body))
	}
	res, err := v.Do(v.Upstream(m.Cluster), apiproxy.UpstreamRequest{Request: out})
	if err != nil {
		return memberReply{cluster: m.Cluster, err: err}
	}
	defer res.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxReply))
	return memberReply{m.Cluster, res.StatusCode, res.Header, body, err}
}

// relay writes a member's response to the client.
func (r *memberReply) relay(w http.ResponseWriter, cluster string) error {
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

// reviewAll sends an access review to all members. It allows the request only if all members allow it.
func (v *request) reviewAll() error {
	if err := v.routed(); err != nil {
		return err
	}
	replies := inParallel(v.decision.Members, v.sendTo)
	for i := range replies {
		r := &replies[i]
		if r.err != nil || r.code/100 != 2 {
			return r.relay(v.W, r.cluster)
		}
	}
	for i := range replies {
		var res struct {
			Status struct {
				Allowed bool `json:"allowed"`
			} `json:"status"`
		}
		if err := json.Unmarshal(replies[i].body, &res); err != nil {
			return unavailable("cluster %s answered a review with an object that is not a review", replies[i].cluster)
		}
		if !res.Status.Allowed {
			return replies[i].relay(v.W, mergedCluster)
		}
	}
	return replies[0].relay(v.W, mergedCluster)
}

// denyReview answers an access review of a request that a rule refuses: not allowed, with the reason.
func (v *request) denyReview() error {
	if err := v.routed(); err != nil {
		return err
	}
	body := map[string]any{
		"apiVersion": v.Request.Group + "/" + v.Request.Version, "kind": v.object.Kind,
		"status": map[string]any{"allowed": false, "denied": true, "reason": "mca: " + v.decision.Refusal.Message},
	}
	b, err := json.Marshal(body)
	if err != nil {
		return err
	}
	v.W.Header().Set("Content-Type", "application/json")
	v.W.Header().Set(clusterHeader, mergedCluster)
	v.W.WriteHeader(http.StatusCreated)
	v.W.Write(b)
	return nil
}

// deleteAll deletes a collection at the members one after the other, if the rule permits it. It stops at the
// first failure and returns it. Earlier deletions are not undone.
func (v *request) deleteAll() error {
	if err := v.routed(); err != nil {
		return err
	}
	if err := v.readBody(); err != nil {
		return err
	}
	var last memberReply
	for _, m := range v.decision.Members {
		if last = v.sendTo(m); last.err != nil || last.code/100 != 2 {
			return last.relay(v.W, last.cluster)
		}
	}
	if v.hidesOwners() {
		last.body = rewriteResponse(last.body, restoreOwnerReferences)
	}
	return last.relay(v.W, mergedCluster)
}
