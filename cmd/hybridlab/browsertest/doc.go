// Package browsertest tests the page of hybridlab in a browser: it has only tests. They drive Chromium, which has to be
// installed as /usr/bin/chromium or named by HYBRID_BROWSER. Without it they are skipped, or fail if
// HYBRID_REQUIRE_BROWSER is 1. With HYBRID_SCREENSHOTS=folder they leave pictures of the page there.
package browsertest
