"""`silo serve`: models and stores behind the API that clients already speak. Only here: fastapi, uvicorn, pydantic."""
