package multicluster

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

const (
	asJSON  = "application/json"
	asProto = "application/vnd.kubernetes.protobuf"
	asTable = "application/json;as=Table;v=v1;g=meta.k8s.io"
)

// serveRequest serves a request with a server. It also returns the request as a cluster receives it, and the error of the
// router.
func serveRequest(s *Router, r *http.Request) (res *http.Response, out *http.Request, err error) {
	server := &apiproxy.Server{Hosts: []string{r.Host}, ValidToken: func(string) bool { return true },
		Permissions: func() apiproxy.Permissions { return apiproxy.Permissions{Impersonation: true} },
		Telemetry:   &apiproxy.Telemetry{Metrics: s.Metrics, Log: s.Log, Now: s.Now}, Log: s.Log, Now: s.Now,
		Handle: func(x *apiproxy.Exchange) error {
			err = s.Handle(x)
			out = x.Out
			return err
		}}
	r.Header.Set("Authorization", "Bearer local")
	w := httptest.NewRecorder()
	server.ServeHTTP(w, r)
	return w.Result(), out, err
}

// TestAcceptedFormats checks section 8: Accept is reduced to the encodings that can be merged, in the client's order of
// preference.
func TestAcceptedFormats(t *testing.T) {
	for _, tt := range []struct {
		why, accept string
		want        string
	}{
		{"none", "", "json"},
		{"anything", "*/*", "json"},
		{"client-go", asProto + "," + asJSON, "proto json"},
		{"kubectl get", asTable + ",application/json;as=Table;v=v1beta1;g=meta.k8s.io," + asJSON, "table table json"},
		{"metadata only", asProto + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", "proto-meta"},
		{"weights", asJSON + ";q=0.5, " + asProto, "proto json"},
		{"not at all", asJSON + ";q=0", ""},
		{"CBOR alone", "application/cbor", ""},
		{"CBOR and JSON", "application/cbor," + asJSON, "json"},
		{"a table in protobuf", asProto + ";as=Table;v=v1;g=meta.k8s.io," + asJSON, "json"},
		{"twice", asJSON + "," + asJSON, "json"},
		{"nonsense", "///, " + asJSON, "json"},
	} {
		var accept []string
		if tt.accept != "" {
			accept = []string{tt.accept}
		}
		var got []string
		for _, f := range parseAccept(accept) {
			name := map[codec.Shape]string{codec.ShapeObjects: "json", codec.ShapeTable: "table", codec.ShapeMetadata: "meta"}[f.Shape]
			if f.Proto {
				name = strings.TrimSuffix("proto-"+name, "-json")
			}
			got = append(got, name)
		}
		if strings.Join(got, " ") != tt.want {
			t.Errorf("%s: %q, want %q", tt.why, got, tt.want)
		}
	}
}

// FuzzForms checks that every resulting media type parses to the same form again.
func FuzzForms(f *testing.F) {
	f.Add(asTable + "," + asJSON + ";q=0.5")
	f.Add(`application/json; as="Table";g=meta.k8s.io;v=v1;q=1e309`)
	f.Fuzz(func(t *testing.T, accept string) {
		for _, format := range parseAccept([]string{accept}) {
			if again, ok := codec.ParseFormat(format.mediaType); !ok || again != format.Format {
				t.Fatalf("%q: %q is not %+v", accept, format.mediaType, format.Format)
			}
		}
	})
}

// TestLocks checks that requests for objects with one name run one at a time, and that a request can give up
// waiting.
func TestLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l createLocks
		key := ObjectKey{Resource: "configmaps", Namespace: "a", Name: "b"}
		unlock, err := l.lock(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.lock(ctx, key); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("two at a time: %v", err)
		}
		if other, err := l.lock(t.Context(), ObjectKey{Name: "c"}); err != nil {
			t.Errorf("another name: %v", err)
		} else {
			other()
		}
		var mu sync.Mutex
		inside, most := 0, 0
		var group sync.WaitGroup
		for range 8 {
			group.Go(func() {
				unlock, err := l.lock(t.Context(), key)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				inside++
				most = max(most, inside)
				mu.Unlock()
				time.Sleep(time.Millisecond)
				mu.Lock()
				inside--
				mu.Unlock()
				unlock()
			})
		}
		unlock()
		group.Wait()
		if most != 1 || len(l.held) != 0 {
			t.Errorf("%d at a time, %d locks remain", most, len(l.held))
		}
	})
}
