"""What tests share: sample models, requests and servers, and ways to check what comes out."""
