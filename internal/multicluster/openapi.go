package multicluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// openAPIv2Proto is the protobuf form of /openapi/v2, which client-go prefers.
const openAPIv2Proto = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

// openAPIIndex is the document /openapi/v3.
type openAPIIndex struct {
	Paths map[string]openAPIIndexEntry `json:"paths"`

	etag string
}

type openAPIIndexEntry struct {
	ServerRelativeURL string `json:"serverRelativeURL"`
}

// openAPIEntry is a document at one path of one source.
type openAPIEntry struct {
	source *discoverySource
	url    string
}

// entries returns the OpenAPI v3 documents by key, such as "apis/apps/v1". Each key has one or more sources,
// home first. For a member that does not respond, it returns the last known documents.
func (c *mergedDiscovery) entries(ctx context.Context) (map[string][]openAPIEntry, unknownClusters, error) {
	all := map[string][]openAPIEntry{}
	var unknown unknownClusters
	for i, s := range c.Sources {
		s.mu.Lock()
		was := s.openAPI
		s.mu.Unlock()
		x, err := s.index(ctx, was.etag)
		switch {
		case errors.Is(err, errNotModified):
			x, err = was, nil
			c.notifyFetch(true, false)
		case err == nil:
			c.notifyFetch(true, true)
			s.mu.Lock()
			s.openAPI = x
			s.mu.Unlock()
		default:
			x = was
		}
		if err != nil {
			if ctx.Err() == nil {
				c.OnError(s.Name, err)
			}
			if x.Paths == nil && i == 0 {
				return nil, nil, err
			}
			if x.Paths == nil {
				unknown = append(unknown, s.Name)
			}
		}
		for key, e := range x.Paths {
			if i > 0 && !showsKey(s, key) {
				continue
			}
			all[key] = append(all[key], openAPIEntry{s, e.ServerRelativeURL})
		}
	}
	return all, unknown, nil
}

func (s *discoverySource) index(ctx context.Context, etag string) (x openAPIIndex, _ error) {
	body, header, err := s.documentIfChanged(ctx, "/openapi/v3", mediaTypeJSON, etag)
	if err != nil {
		return x, fmt.Errorf("OpenAPI: %w", err)
	}
	if err := json.Unmarshal(body, &x); err != nil {
		return x, fmt.Errorf("OpenAPI: cluster %s: %w", s.Name, err)
	}
	x.etag = header.Get("ETag")
	return x, nil
}

// showsKey reports whether rules send requests for a key of the index to a member.
func showsKey(s *discoverySource, key string) bool {
	parts := strings.Split(key, "/")
	switch {
	case len(parts) == 2 && parts[0] == "api":
		return s.shows("", parts[1])
	case len(parts) == 3 && parts[0] == "apis":
		return s.shows(parts[1], parts[2])
	case len(parts) == 2 && parts[0] == "apis": // the group itself
		return s.shows(parts[1], "")
	}
	return false // other keys come from home only
}

// sameDocument reports whether all entries have the same content, according to the hashes in their URLs.
func sameDocument(es []openAPIEntry) bool {
	for _, e := range es {
		if h := openAPIHash(e.url); h == "" || h != openAPIHash(es[0].url) {
			return len(es) == 1
		}
	}
	return true
}

func openAPIHash(relative string) string {
	u, err := url.Parse(relative)
	if err != nil {
		return ""
	}
	return u.Query().Get("hash")
}

func (c *mergedDiscovery) openAPIv3(w http.ResponseWriter, r *http.Request) error {
	if !acceptsType(r.Header.Values("Accept"), mediaTypeJSON) {
		return errDiscoveryNotAcceptable
	}
	all, unknown, err := c.entries(r.Context())
	if err != nil {
		return err
	}
	unknown.warn(w)
	x := openAPIIndex{Paths: map[string]openAPIIndexEntry{}}
	for key, es := range all {
		e := openAPIIndexEntry{ServerRelativeURL: es[0].url}
		if !sameDocument(es) {
			sum := sha256.New()
			for _, one := range es {
				fmt.Fprintf(sum, "%s %s\n", one.source.Name, one.url)
			}
			e.ServerRelativeURL = "/openapi/v3/" + key + "?hash=" + strings.ToUpper(hex.EncodeToString(sum.Sum(nil)))
		}
		x.Paths[key] = e
	}
	body, err := json.Marshal(x)
	if err != nil {
		return err
	}
	writeDocument(w, r, mediaTypeJSON, body)
	return nil
}

func (c *mergedDiscovery) openAPIv3Document(w http.ResponseWriter, r *http.Request, key string) error {
	all, _, err := c.entries(r.Context())
	if err != nil {
		return err
	}
	es := all[key]
	if len(es) == 0 {
		return errDiscoveryNotFound
	}
	accept := cmp.Or(strings.Join(r.Header.Values("Accept"), ", "), mediaTypeJSON)
	if sameDocument(es) {
		body, contentType, err := es[0].source.document(r.Context(), es[0].url, accept)
		if err != nil {
			return err
		}
		writeDocument(w, r, contentType, body)
		return nil
	}
	if !acceptsType(r.Header.Values("Accept"), mediaTypeJSON) {
		return errDiscoveryNotAcceptable
	}
	var bodies [][]byte
	var unknown unknownClusters
	for i, e := range es {
		body, _, err := e.source.document(r.Context(), e.url, mediaTypeJSON)
		switch {
		case err == nil:
			bodies = append(bodies, body)
		case i == 0:
			return err
		default:
			unknown = append(unknown, e.source.Name)
		}
	}
	body, err := joinJSON(bodies, nil, "paths", "components")
	if err != nil {
		return fmt.Errorf("OpenAPI: %s: %w", key, err)
	}
	unknown.warn(w)
	writeDocument(w, r, mediaTypeJSON, body)
	return nil
}

// openAPIv2 serves a single document: that of home, with the paths of the members that rules use, and all
// definitions.
func (c *mergedDiscovery) openAPIv2(w http.ResponseWriter, r *http.Request) error {
	accept, join := mediaTypeJSON, joinSwagger
	switch {
	case acceptsType(r.Header.Values("Accept"), mediaTypeJSON):
	case acceptsType(r.Header.Values("Accept"), openAPIv2Proto) || slices.ContainsFunc(r.Header.Values("Accept"), func(s string) bool { return strings.Contains(s, "proto-openapi.spec.v2@v1.0+protobuf") }):
		accept, join = openAPIv2Proto, joinSwaggerProto
	default:
		return errDiscoveryNotAcceptable
	}
	var bodies [][]byte
	var shows []func(path string) bool
	var unknown unknownClusters
	contentType := ""
	for i, s := range c.Sources {
		body, its, err := s.document(r.Context(), "/openapi/v2", accept)
		if err != nil && i > 0 {
			unknown = append(unknown, s.Name)
			continue
		}
		if err != nil {
			return err
		}
		contentType = cmp.Or(contentType, its)
		bodies = append(bodies, body)
		shows = append(shows, func(path string) bool { return showsPath(s, path) })
	}
	body, err := join(bodies, shows)
	if err != nil {
		return fmt.Errorf("OpenAPI: /openapi/v2: %w", err)
	}
	unknown.warn(w)
	writeDocument(w, r, contentType, body)
	return nil
}

// showsPath reports whether rules send requests for an OpenAPI path to a member.
func showsPath(s *discoverySource, path string) bool {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) >= 2 && parts[0] == "api":
		return s.shows("", parts[1])
	case len(parts) >= 3 && parts[0] == "apis":
		return s.shows(parts[1], parts[2])
	}
	return false
}

func joinSwagger(bodies [][]byte, shows []func(string) bool) ([]byte, error) {
	return joinJSON(bodies, shows, "paths", "definitions")
}

// joinJSON merges documents. It starts with the first one. To its objects with the given names it adds the
// fields that it lacks and the others have. For paths, shows filters them. It merges the objects in
// "components", such as "schemas", one level deeper.
func joinJSON(bodies [][]byte, shows []func(string) bool, names ...string) ([]byte, error) {
	var out map[string]json.RawMessage
	if err := json.Unmarshal(bodies[0], &out); err != nil {
		return nil, err
	}
	for i, body := range bodies[1:] {
		var from map[string]json.RawMessage
		if err := json.Unmarshal(body, &from); err != nil {
			return nil, err
		}
		for _, name := range names {
			if from[name] == nil {
				continue
			}
			if out[name] == nil {
				out[name] = json.RawMessage("{}")
			}
			var show func(string) bool
			if name == "paths" && shows != nil {
				show = shows[i+1]
			}
			joined, err := joinObjects(out[name], from[name], show, name == "components")
			if err != nil {
				return nil, err
			}
			out[name] = joined
		}
	}
	return json.Marshal(out)
}

// joinObjects adds the fields of object b to object a, unless a has them or show hides them; show may be nil. If deep is
// set, it joins the fields that both have.
func joinObjects(a, b json.RawMessage, show func(string) bool, deep bool) (json.RawMessage, error) {
	var to, from map[string]json.RawMessage
	if err := json.Unmarshal(a, &to); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(b, &from); err != nil {
		return nil, err
	}
	for name, v := range from {
		have, there := to[name]
		switch {
		case !there && (show == nil || show(name)):
			to[name] = v
		case there && deep:
			joined, err := joinObjects(have, v, nil, false)
			if err != nil {
				return nil, err
			}
			to[name] = joined
		}
	}
	return json.Marshal(to)
}

// Fields of gnostic's openapi.v2.Document in protobuf.
const (
	swaggerPaths       = 8 // message Paths: path = 2, a NamedPathItem
	swaggerDefinitions = 9 // message Definitions: additional_properties = 1, a NamedSchema
	pathsItem          = 2
	definitionsItem    = 1
	namedName          = 1 // of NamedPathItem and NamedSchema
)

// joinSwaggerProto implements joinSwagger for protobuf. Appending a message adds to its repeated fields, so
// only the items that the first document lacks are appended.
func joinSwaggerProto(bodies [][]byte, shows []func(string) bool) ([]byte, error) {
	seen := map[protowire.Number]map[string]bool{swaggerPaths: {}, swaggerDefinitions: {}}
	item := map[protowire.Number]protowire.Number{swaggerPaths: pathsItem, swaggerDefinitions: definitionsItem}
	out := slices.Clone(bodies[0])
	for i, body := range bodies {
		fresh := map[protowire.Number][]byte{}
		document := codec.NewMessage(body)
		for document.Next() {
			field := document.Num
			if seen[field] == nil {
				continue
			}
			named := codec.NewMessage(document.Value)
			for named.Next() {
				if named.Num != item[field] {
					continue
				}
				var name string
				if name, named.Err = stringField(named.Value, namedName); i > 0 &&
					(seen[field][name] || field == swaggerPaths && !shows[i](name)) {
					continue
				}
				seen[field][name] = true
				if i > 0 {
					fresh[field] = append(fresh[field], named.Whole...)
				}
			}
			document.Err = named.Err
		}
		if document.Err != nil {
			return nil, errors.New("the document is not protobuf")
		}
		for _, field := range slices.Sorted(maps.Keys(fresh)) {
			out = protowire.AppendTag(out, field, protowire.BytesType)
			out = protowire.AppendBytes(out, fresh[field])
		}
	}
	return out, nil
}
