package attachments

import (
	"errors"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
)

// A TailscaleGateway reports why its state is not the newest; the worst reason comes first.
func TestDegraded(t *testing.T) {
	t.Parallel()
	stale := &v1alpha1.TailscaleGateway{}
	stale.Status.Tailnets = []v1alpha1.AttachedTailnetStatus{{Name: "corp", Stale: true}}
	left := gateway.AttachmentReport{LeftOut: []string{"tenants"}}
	for _, tt := range []struct {
		name         string
		of           *v1alpha1.TailscaleGateway
		report       gateway.AttachmentReport
		fault        error
		reason, says string
	}{
		{"nothing", &v1alpha1.TailscaleGateway{}, gateway.AttachmentReport{}, nil, v1alpha1.ReasonAsExpected, ""},
		{"a tailnet", stale, gateway.AttachmentReport{}, nil, v1alpha1.ReasonAPIUnavailable, "corp"},
		{"rights", stale, left, nil, v1alpha1.ReasonNamespaceForbidden, "tenants"},
		{"everything", stale, left, errors.New("x"), v1alpha1.ReasonFailed, "decided last stays"},
	} {
		if v := degraded(tt.of, tt.report, tt.fault); v.Reason != tt.reason || !strings.Contains(v.Message, tt.says) || v.OK != (tt.says != "") {
			t.Errorf("%s: %+v", tt.name, v)
		}
	}
}
