package multicluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/tailplane/tailplane/internal/util/accept"
)

// Media types of discovery documents.
const (
	aggregatedV2  = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	mediaTypeJSON = "application/json"
)

// Errors of Serve that are not failures of a cluster.
var (
	// errDiscoveryNotFound means that no cluster has the group, version or document.
	errDiscoveryNotFound = errors.New("no cluster has it")
	// errDiscoveryNotAcceptable means that the client accepts no encoding in which documents can be merged.
	errDiscoveryNotAcceptable = errors.New("the discovery of several clusters is available only as application/json")
)

// isDiscoveryPath reports whether a path belongs to discovery or OpenAPI.
func isDiscoveryPath(path string) bool {
	path = strings.TrimSuffix(path, "/")
	if path == "/api" || path == "/apis" || path == "/openapi/v2" || path == "/openapi/v3" || strings.HasPrefix(path, "/openapi/v3/") {
		return true
	}
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	return parts[0] == "api" && len(parts) == 2 || parts[0] == "apis" && (len(parts) == 2 || len(parts) == 3)
}

// Serve answers a GET of a path for which [isDiscoveryPath] is true. If it returns an error, it has written nothing.
func (c *mergedDiscovery) Serve(w http.ResponseWriter, r *http.Request) error {
	path := strings.TrimSuffix(r.URL.Path, "/")
	switch {
	case path == "/openapi/v2":
		return c.openAPIv2(w, r)
	case path == "/openapi/v3":
		return c.openAPIv3(w, r)
	case strings.HasPrefix(path, "/openapi/v3/"):
		return c.openAPIv3Document(w, r, strings.TrimPrefix(path, "/openapi/v3/"))
	}
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	groups, unknown, err := c.groups(r.Context(), parts[0] == "api")
	if err != nil {
		return err
	}
	aggregated := false
	if len(parts) == 1 {
		aggregated = prefersAggregated(r.Header.Values("Accept"))
	}
	if !aggregated && !acceptsType(r.Header.Values("Accept"), mediaTypeJSON) {
		return errDiscoveryNotAcceptable
	}
	doc, err := discoveryDocument(parts, groups, aggregated)
	if err != nil {
		if len(unknown) > 0 && errors.Is(err, errDiscoveryNotFound) {
			return fmt.Errorf("%s is unknown, and the kinds of cluster %s are not known yet", path, strings.Join(unknown, ", "))
		}
		return err
	}
	unknown.warn(w)
	contentType := mediaTypeJSON
	if aggregated {
		contentType = aggregatedV2
	}
	body, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	writeDocument(w, r, contentType, append(body, '\n'))
	return nil
}

// discoveryDocument returns the document at a discovery path.
func discoveryDocument(parts []string, groups []apiGroup, aggregated bool) (any, error) {
	core := parts[0] == "api"
	switch {
	case aggregated:
		return apiGroupList{
			Kind:       "APIGroupDiscoveryList",
			APIVersion: "apidiscovery.k8s.io/v2",
			Metadata:   json.RawMessage("{}"),
			Items:      groups,
		}, nil
	case len(parts) == 1 && core:
		l := legacyCore{Kind: "APIVersions", ServerAddressByClientCIDRs: []string{}}
		for _, g := range groups {
			for _, v := range g.Versions {
				l.Versions = append(l.Versions, v.Version)
			}
		}
		return l, nil
	case len(parts) == 1:
		l := legacyGroups{Kind: "APIGroupList", APIVersion: "v1", Groups: []legacyGroup{}}
		for _, g := range groups {
			l.Groups = append(l.Groups, legacyGroupOf(g))
		}
		return l, nil
	}
	name, want := "", parts[1]
	if !core {
		name, want = parts[1], ""
		if len(parts) == 3 {
			want = parts[2]
		}
	}
	for _, g := range groups {
		if g.Metadata.Name != name {
			continue
		}
		if want == "" {
			l := legacyGroupOf(g)
			l.Kind, l.APIVersion = "APIGroup", "v1"
			return l, nil
		}
		for _, v := range g.Versions {
			if v.Version == want {
				return legacyResourcesOf(name, v), nil
			}
		}
	}
	return nil, errDiscoveryNotFound
}

// writeDocument writes a document, or 304 if the client already has it.
func writeDocument(w http.ResponseWriter, r *http.Request, contentType string, body []byte) {
	sum := sha256.Sum256(body)
	tag := `"` + strings.ToUpper(hex.EncodeToString(sum[:])) + `"`
	h := w.Header()
	h.Set("ETag", tag)
	h.Set("Vary", "Accept")
	h.Set("Cache-Control", "public")
	for _, have := range r.Header.Values("If-None-Match") {
		for one := range strings.SplitSeq(have, ",") {
			if one = strings.TrimPrefix(strings.TrimSpace(one), "W/"); one == tag || one == "*" {
				w.WriteHeader(http.StatusNotModified)
				return
			}
		}
	}
	h.Set("Content-Type", contentType)
	h.Set("Content-Length", fmt.Sprint(len(body)))
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		w.Write(body) // a truncated response is detected by its length
	}
}

// prefersAggregated reports whether the first supported form in Accept is the aggregated one. Clients list
// their preferred form first.
func prefersAggregated(headers []string) bool {
	for r := range accept.Ranges(headers...) {
		if (r.Media == mediaTypeJSON || r.Media == "application/*" || r.Media == "*/*") && r.Params["as"] == "" {
			return false
		}
		if r.Media == mediaTypeJSON && r.Params["g"] == "apidiscovery.k8s.io" && r.Params["v"] == "v2" &&
			r.Params["as"] == "APIGroupDiscoveryList" {
			return true
		}
	}
	return false
}

func isAggregated(contentType string) bool { return prefersAggregated([]string{contentType}) }

// acceptsType reports whether Accept includes a media type. An empty Accept includes everything.
func acceptsType(headers []string, want string) bool {
	if len(headers) == 0 {
		return true
	}
	for r := range accept.Ranges(headers...) {
		if r.Params["as"] == "" &&
			(r.Media == want || r.Media == "*/*" || r.Media == "application/*" && strings.HasPrefix(want, "application/")) {
			return true
		}
	}
	return false
}

// get requests a document, unless its ETag is etag. It reads a body of at most maxDiscoveryDocument bytes, and only with status 200. The
// response is nil if the cluster did not answer.
func (s *discoverySource) get(ctx context.Context, path, accept, etag string) (res *http.Response, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, discoveryTimeout)
	defer cancel()
	header := http.Header{"Accept": {accept}}
	if etag != "" {
		header["If-None-Match"] = []string{etag}
	}
	if res, err = s.Fetch(ctx, path, header); err != nil {
		return nil, nil, err
	}
	defer res.Body.Close()
	if res.StatusCode == http.StatusOK {
		body, err = io.ReadAll(io.LimitReader(res.Body, maxDiscoveryDocument+1))
	}
	if err == nil && len(body) > maxDiscoveryDocument {
		err = fmt.Errorf("the document has more than %d bytes", maxDiscoveryDocument)
	}
	return res, body, err
}

// errNotModified means that the known document is current.
var errNotModified = errors.New("it has not changed")

// document fetches a document that is not cached.
func (s *discoverySource) document(ctx context.Context, path, accept string) (body []byte, contentType string, _ error) {
	body, header, err := s.documentIfChanged(ctx, path, accept, "")
	return body, header.Get("Content-Type"), err
}

// documentIfChanged fetches a document, unless its ETag is etag. In that case the error is errNotModified.
func (s *discoverySource) documentIfChanged(ctx context.Context, path, accept, etag string) (body []byte, header http.Header, _ error) {
	res, body, err := s.get(ctx, path, accept, etag)
	switch {
	case res == nil:
		return nil, nil, fmt.Errorf("cluster %s: GET %s: %w", s.Name, path, err)
	case res.StatusCode == http.StatusOK:
		return body, res.Header, err
	case res.StatusCode == http.StatusNotModified && etag != "":
		return nil, nil, errNotModified
	case res.StatusCode == http.StatusNotFound:
		return nil, nil, errDiscoveryNotFound
	case res.StatusCode == http.StatusNotAcceptable:
		return nil, nil, errDiscoveryNotAcceptable
	}
	return nil, nil, fmt.Errorf("cluster %s: GET %s: status %d", s.Name, path, res.StatusCode)
}
