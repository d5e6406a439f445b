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
	if strings.Contains(page, "<script") || strings.Contains(page, "<img") || strings.Contains(page, "href") {
		t.Errorf("the page contains markup of other servers:\n%s", page)
	}
	if !strings.Contains(page, "&lt;script&gt;") || !strings.Contains(page, "unverified") || !strings.Contains(page, "2 not shown") || !strings.Contains(page, "cannot reach any other server") {
		t.Errorf("the page is incomplete:\n%s", page)
	}
}
