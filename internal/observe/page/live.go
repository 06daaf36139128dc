package page

import "bytes"

// Live returns the page for a server that sends it calls, and the policy to send as a header with the page. The page
// requests these paths:
//
//	stream          server-sent events: "info" ([Info]), "calls" ([Batch]), "rewritten" ([rewrites]),
//	                "story" ([Story]), "wrong" ([Finder]), "status" and "link"
//	call?key=KEY    the details of a call ([Render])
func Live() (html []byte, contentSecurityPolicy string) {
	var b bytes.Buffer
	b.Write(pageBegin(livePolicy))
	b.Write(pageEnd())
	return b.Bytes(), policy(livePolicy) + "; frame-ancestors 'none'"
}
