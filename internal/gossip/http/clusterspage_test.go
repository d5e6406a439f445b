package gossiphttp_test

import (
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/gossip"
	gossiphttp "github.com/tailplane/tailplane/internal/gossip/http"
	"github.com/tailplane/tailplane/internal/httpapi"
)

// TestRender: text from other servers is data, whatever it contains (DSC-11, GO-08).
func TestRender(t *testing.T) {
	evil := `<script>alert("x")</script>`
	b, err := gossiphttp.RenderClusters(gossip.ClusterList{Clusters: []gossip.Cluster{{Name: evil, State: gossip.State(evil), URL: "javascript:alert(1)", APIEndpoint: `"><img src=x>`,
		Labels: map[string]string{evil: evil}, Key: httpapi.PublicKey{1}}}, Hidden: 2, Isolated: true})
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	switch {
	case strings.Contains(page, "<script"):
		t.Errorf("the page contains markup of other servers: page = %q contains %q", page, "<script")
	case strings.Contains(page, "<img"):
		t.Errorf("the page contains markup of other servers: page = %q contains %q", page, "<img")
	case strings.Contains(page, "href"):
		t.Errorf("the page contains markup of other servers: page = %q contains %q", page, "href")
	}
	switch {
	case !strings.Contains(page, "&lt;script&gt;"):
		t.Errorf("the page is incomplete: page = %q does not contain %q", page, "&lt;script&gt;")
	case !strings.Contains(page, "unverified"):
		t.Errorf("the page is incomplete: page = %q does not contain %q", page, "unverified")
	case !strings.Contains(page, "2 not shown"):
		t.Errorf("the page is incomplete: page = %q does not contain %q", page, "2 not shown")
	case !strings.Contains(page, "cannot reach any other server"):
		t.Errorf("the page is incomplete: page = %q does not contain %q", page, "cannot reach any other server")
	}
}
