"""What people read: report, certificate, dossier, and the files made beside them."""
