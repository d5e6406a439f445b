package controller

import (
	"errors"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
)

// A TailscaleGateway reports why its state is not the newest; the worst reason comes first.
func TestAttachmentDegraded(t *testing.T) {
	t.Parallel()
	stale := &v1alpha1.TailscaleGateway{}
	stale.Status.Tailnets = []v1alpha1.AttachedTailnetStatus{{Name: "corp", Stale: true}}
	unreadable := gateway.AttachmentReport{Unreadable: []string{"tenants"}}
	for _, tt := range []struct {
		name         string
		of           *v1alpha1.TailscaleGateway
		report       gateway.AttachmentReport
		fault        error
		reason, says string
	}{
		{"nothing", &v1alpha1.TailscaleGateway{}, gateway.AttachmentReport{}, nil, v1alpha1.ReasonAsExpected, ""},
		{"a tailnet", stale, gateway.AttachmentReport{}, nil, v1alpha1.ReasonAPIUnavailable, "corp"},
		{"rights", stale, unreadable, nil, v1alpha1.ReasonNamespaceForbidden, "tenants"},
		{"everything", stale, unreadable, errors.New("x"), v1alpha1.ReasonFailed, "the last decision stays"},
	} {
		switch v := attachmentDegraded(tt.of, tt.report, tt.fault); {
		case v.Reason != tt.reason:
			t.Errorf("%s: v.Reason = %q, want %q", tt.name, v.Reason, tt.reason)
		case !strings.Contains(v.Message, tt.says):
			t.Errorf("%s: v.Message = %q does not contain %q", tt.name, v.Message, tt.says)
		case v.IsTrue() != (tt.says != ""):
			t.Errorf("%s: v.IsTrue() = %v, want %v", tt.name, v.IsTrue(), (tt.says != ""))
		}
	}
}
